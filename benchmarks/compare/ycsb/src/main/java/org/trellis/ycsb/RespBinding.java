package org.trellis.ycsb;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.Vector;
import site.ycsb.ByteArrayByteIterator;
import site.ycsb.ByteIterator;
import site.ycsb.DB;
import site.ycsb.DBException;
import site.ycsb.Status;

/**
 * YCSB's rows as hashes of a server that speaks the Redis protocol: Redis itself, or {@code trellis store serve} in front of
 * any store.
 *
 * <p>Properties: {@code resp.host} (127.0.0.1) and {@code resp.port} (6379). A row is one hash, so that an update changes
 * the fields it names and no others. Scans are not offered: workloads A and F have none.
 */
public final class RespBinding extends DB {
  private RespConnection connection;

  @Override
  public void init() throws DBException {
    Properties properties = getProperties();
    String host = properties.getProperty("resp.host", "127.0.0.1");
    String port = properties.getProperty("resp.port", "6379");
    try {
      connection = new RespConnection(host, Integer.parseInt(port));
    } catch (IOException | NumberFormatException error) {
      throw new DBException("cannot connect to " + host + ":" + port, error);
    }
  }

  @Override
  public void cleanup() throws DBException {
    try {
      connection.close();
    } catch (IOException error) {
      throw new DBException(error);
    }
  }

  @Override
  public Status read(String table, String key, Set<String> fields, Map<String, ByteIterator> result) {
    try {
      return fields == null ? readAll(table, key, result) : readSome(table, key, fields, result);
    } catch (IOException error) {
      return failed(error);
    }
  }

  @Override
  public Status update(String table, String key, Map<String, ByteIterator> values) {
    List<byte[]> words = command("HSET", table, key);
    for (Map.Entry<String, ByteIterator> value : values.entrySet()) {
      words.add(bytes(value.getKey()));
      words.add(value.getValue().toArray());
    }
    try {
      return connection.call(words) instanceof Long ? Status.OK : Status.UNEXPECTED_STATE;
    } catch (IOException error) {
      return failed(error);
    }
  }

  @Override
  public Status insert(String table, String key, Map<String, ByteIterator> values) {
    return update(table, key, values);
  }

  @Override
  public Status delete(String table, String key) {
    try {
      return Long.valueOf(1).equals(connection.call(command("DEL", table, key))) ? Status.OK : Status.NOT_FOUND;
    } catch (IOException error) {
      return failed(error);
    }
  }

  @Override
  public Status scan(
      String table, String start, int count, Set<String> fields, Vector<HashMap<String, ByteIterator>> result) {
    return Status.NOT_IMPLEMENTED;
  }

  private Status readAll(String table, String key, Map<String, ByteIterator> result) throws IOException {
    Object reply = connection.call(command("HGETALL", table, key));
    if (!(reply instanceof List)) {
      return Status.UNEXPECTED_STATE;
    }
    List<?> pairs = (List<?>) reply;
    for (int index = 0; index + 1 < pairs.size(); index += 2) {
      String field = new String((byte[]) pairs.get(index), StandardCharsets.UTF_8);
      result.put(field, new ByteArrayByteIterator((byte[]) pairs.get(index + 1)));
    }
    return pairs.isEmpty() ? Status.NOT_FOUND : Status.OK;
  }

  private Status readSome(String table, String key, Set<String> fields, Map<String, ByteIterator> result)
      throws IOException {
    List<byte[]> words = command("HMGET", table, key);
    fields.forEach(field -> words.add(bytes(field)));
    Object reply = connection.call(words);
    if (!(reply instanceof List) || ((List<?>) reply).size() != fields.size()) {
      return Status.UNEXPECTED_STATE;
    }
    int index = 0;
    for (String field : fields) {
      byte[] value = (byte[]) ((List<?>) reply).get(index++);
      if (value != null) {
        result.put(field, new ByteArrayByteIterator(value));
      }
    }
    return result.isEmpty() ? Status.NOT_FOUND : Status.OK;
  }

  private static List<byte[]> command(String name, String table, String key) {
    List<byte[]> words = new ArrayList<>();
    words.add(bytes(name));
    words.add(bytes(table + ":" + key));
    return words;
  }

  private static byte[] bytes(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }

  private static Status failed(IOException error) {
    System.err.println("trellis-ycsb: " + error.getMessage());
    return Status.ERROR;
  }
}
