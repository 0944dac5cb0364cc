import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;

/** Reads and writes files with shared buffers that another node holds: Buffers FOLDER */
public class Buffers {
    private static final int SIZE = 40 * 4096 + 5;

    private static native ByteBuffer join(int bytes);

    private static native int node();

    private static native void barrier(long id);

    private static native void leave();

    private static void check(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
    }

    private static byte[] all(ByteBuffer memory) {
        byte[] bytes = new byte[SIZE];
        memory.get(0, bytes);
        return bytes;
    }

    public static void main(String[] arguments) throws IOException {
        System.loadLibrary("buffers");
        ByteBuffer memory = join(SIZE);
        byte[] content = new byte[SIZE];
        for (int number = 0; number < SIZE; ++number) content[number] = (byte) (number * 7 % 251);
        Path path = Path.of(arguments[0], "content"), copy = Path.of(arguments[0], "content-copy");
        if (node() == 0) {
            Files.write(path, content);
            memory.put(0, new byte[SIZE]);
        }
        barrier(1);
        if (node() == 1) {
            try (FileChannel channel = FileChannel.open(path)) {
                while (memory.hasRemaining()) check(channel.read(memory) > 0, "the file ends early");
            }
            check(Arrays.equals(all(memory), content), "the file was read wrong");
        }
        barrier(2);
        if (node() == 0) {
            try (FileChannel channel =
                    FileChannel.open(copy, StandardOpenOption.CREATE, StandardOpenOption.WRITE)) {
                while (memory.hasRemaining()) channel.write(memory);
            }
            check(Arrays.equals(Files.readAllBytes(copy), content), "the file was written wrong");
        }
        // The virtual machine still handles its own faults.
        int[] nothing = arguments.length > 5 ? new int[1] : null;
        try {
            System.out.println(nothing[0]);
        } catch (NullPointerException expected) {
            leave();
            System.out.println("complete");
        }
    }
}
