import java.io.File;
import java.nio.ByteBuffer;
import java.util.concurrent.CountDownLatch;
import java.util.zip.CRC32;
import java.util.zip.Deflater;

/**
 * NativeMemory JOBS RESTING: memory that a Java service has outside of its heap. Eight threads fill direct buffers and
 * compress them. Then it prints a checksum, makes the empty file RESTING, and rests until SIGTERM ends it.
 */
public final class NativeMemory {
    private static final int THREADS = 8;

    public static void main(String[] words) throws Exception {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> Runtime.getRuntime().halt(0)));
        int jobs = Integer.parseInt(words[0]);
        long[] sums = new long[THREADS];
        CountDownLatch done = new CountDownLatch(THREADS);
        CountDownLatch end = new CountDownLatch(1);
        for (int i = 0; i < THREADS; i++) {
            int own = i;
            new Thread(() -> {
                for (int job = own; job < jobs; job += THREADS) {
                    sums[own] ^= work(job);
                }
                done.countDown();
                wait(end);
            }).start();
        }
        done.await();
        long sum = 0;
        for (long one : sums) {
            sum ^= one;
        }
        System.gc(); // buffers are freed when the collector has found them
        Thread.sleep(300);
        System.gc();
        System.out.printf("%d jobs, checksum %x%n", jobs, sum);
        System.out.flush();
        if (!new File(words[1]).createNewFile()) {
            System.exit(1);
        }
        wait(end);
    }

    private static void wait(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private static long work(int job) {
        int size = (64 << 10) + (int) (job * 2654435761L % (1 << 20) & 0xFFFFF);
        ByteBuffer from = ByteBuffer.allocateDirect(size);
        ByteBuffer to = ByteBuffer.allocateDirect(size + 1024);
        for (int i = 0; i + 8 <= size; i += 8) {
            from.putLong(i, (long) (i / 64) * job);
        }
        Deflater deflater = new Deflater(1 + job % 3);
        deflater.setInput(from);
        deflater.finish();
        deflater.deflate(to);
        deflater.end();
        CRC32 sum = new CRC32();
        to.flip();
        sum.update(to);
        return sum.getValue() * (job + 1);
    }
}
