// A Java program whose threads compute on the GPU through JNI, while the machine does what it does with signals and
// memory: null accesses and stack overflows that become exceptions (SIGSEGV), compiled code, garbage collection.
// Host.class is made of it: javac --release 11 Host.java
import java.util.ArrayList;
import java.util.List;

public class Host {
    static native int compute(int n);

    static class Box { int value; Box next; }

    static int depth(int n) { return depth(n + 1) + 1; }

    static int nulls(Box[] boxes) { // hot: the compiler leaves the checks to the memory protection
        int caught = 0;
        for (Box b : boxes) {
            try {
                caught += b.value;
            } catch (NullPointerException e) {
                caught++;
            }
        }
        return caught;
    }

    static String work(int id) {
        Box[] boxes = new Box[4096];
        for (int round = 0; round < 20; round++) {
            int got = compute(1000 + id);
            if (got != 0) return "element " + (got - 1) + " is wrong";
            for (int i = 0; i < boxes.length; i++) boxes[i] = round < 15 || i % 512 != 0 ? new Box() : null;
            int want = round < 15 ? 0 : 8;
            if (nulls(boxes) != want) return "null accesses were not caught";
            if (round % 5 == 0) {
                try {
                    depth(0);
                    return "no stack overflow";
                } catch (StackOverflowError e) {
                    // as it should be
                }
                System.gc();
            }
        }
        return "right";
    }

    public static void main(String[] args) throws Exception {
        System.load(args[0]);
        List<Thread> threads = new ArrayList<>();
        String[] results = new String[8];
        for (int i = 0; i < results.length; i++) {
            final int id = i;
            threads.add(new Thread(() -> results[id] = work(id)));
        }
        for (Thread t : threads) t.start();
        for (Thread t : threads) t.join();
        for (String r : results) if (!"right".equals(r)) throw new AssertionError(r);
        System.out.println(results.length + " threads right");
    }
}
