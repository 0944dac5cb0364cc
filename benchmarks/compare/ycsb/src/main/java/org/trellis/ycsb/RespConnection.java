package org.trellis.ycsb;

import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.Closeable;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/**
 * One connection that speaks the Redis protocol (RESP2), one request at a time.
 *
 * <p>A reply is a {@code byte[]} (a bulk string, or {@code null}), a {@link Long}, a {@link String} (a simple string) or
 * a {@link List} of replies. An error reply is an {@link IOException}, so that no failure counts as an operation.
 */
final class RespConnection implements Closeable {
  private static final int CONNECT_MILLISECONDS = 10_000;
  private static final byte[] LINE_END = {'\r', '\n'};

  private final Socket socket = new Socket();
  private final InputStream in;
  private final OutputStream out;

  RespConnection(String host, int port) throws IOException {
    socket.setTcpNoDelay(true);
    socket.connect(new InetSocketAddress(host, port), CONNECT_MILLISECONDS);
    in = new BufferedInputStream(socket.getInputStream(), 1 << 16);
    out = new BufferedOutputStream(socket.getOutputStream(), 1 << 16);
  }

  /** Sends a command and its arguments, and waits for the reply. */
  Object call(List<byte[]> words) throws IOException {
    head('*', words.size());
    for (byte[] word : words) {
      head('$', word.length);
      out.write(word);
      out.write(LINE_END);
    }
    out.flush();
    return reply();
  }

  @Override
  public void close() throws IOException {
    socket.close();
  }

  private void head(char kind, int number) throws IOException {
    out.write(kind);
    out.write(Integer.toString(number).getBytes(StandardCharsets.US_ASCII));
    out.write(LINE_END);
  }

  private Object reply() throws IOException {
    int kind = octet();
    String line = line();
    switch (kind) {
      case '+':
        return line;
      case '-':
        throw new IOException("the server answered: " + line);
      case ':':
        return number(line);
      case '$':
        return bulk((int) number(line));
      case '*':
        return list((int) number(line));
      default:
        throw new IOException("a reply begins with byte " + kind + ", which RESP2 does not have");
    }
  }

  private byte[] bulk(int length) throws IOException {
    if (length < 0) {
      return null;
    }
    byte[] bytes = in.readNBytes(length);
    if (bytes.length < length || octet() != '\r' || octet() != '\n') {
      throw new EOFException("a reply is not as long as it says");
    }
    return bytes;
  }

  private List<Object> list(int length) throws IOException {
    List<Object> replies = new ArrayList<>(Math.max(length, 0));
    for (int index = 0; index < length; index++) {
      replies.add(reply());
    }
    return replies;
  }

  private static long number(String line) throws IOException {
    try {
      return Long.parseLong(line);
    } catch (NumberFormatException error) {
      throw new IOException("a reply has no number: " + line, error);
    }
  }

  private String line() throws IOException {
    StringBuilder line = new StringBuilder();
    for (int octet = octet(); octet != '\r'; octet = octet()) {
      line.append((char) octet);
    }
    if (octet() != '\n') {
      throw new IOException("a line of a reply does not end as it must");
    }
    return line.toString();
  }

  private int octet() throws IOException {
    int octet = in.read();
    if (octet < 0) {
      throw new EOFException("the server closed the connection");
    }
    return octet;
  }
}
