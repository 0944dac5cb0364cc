// One process: its input, output, files, children, identity and end, seen from a thread of another node. The first
// argument says what the thread does.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *what;
static int file = -1;
static pid_t process;
static volatile sig_atomic_t signalled;
static FILE *stream;

static void fail(const char *why) {
    perror(why);
    exit(1);
}

static void on_signal(int signal) { signalled = signal; }

static void *wait_for_ever(void *unused) {
    (void)unused;
    for (volatile long count = 0;; count++) {
    }
    return NULL;
}

static pthread_barrier_t start;

static void *end_together(void *unused) {
    (void)unused;
    pthread_barrier_wait(&start);
    _exit(3);
}

static void *act(void *unused) {
    (void)unused;
    if (getpid() != process || getppid() == process) fail("identity");
    if (!strcmp(what, "exit")) exit(5);
    if (!strcmp(what, "_exit")) _exit(6);
    if (!strcmp(what, "abort")) abort();
    if (!strcmp(what, "input")) {
        char line[100];
        while (fgets(line, sizeof line, stdin)) printf("line %s", line);
    }
    if (!strcmp(what, "files")) {
        // The descriptor, the position and the stream of the main thread.
        char text[10] = "";
        if (read(file, text, 3) != 3 || strcmp(text, "def") || lseek(file, 0, SEEK_CUR) != 6) fail("read");
        if (fprintf(stream, "from a thread %d\n", 7) < 0 || fflush(stream)) fail("fprintf");
        if (mkdir("made", 0700) || chdir("made")) fail("mkdir");
        int own = open("own", O_CREAT | O_RDWR, 0600);
        if (own < 0 || write(own, "xyz", 3) != 3) fail("open");
        file = own;
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) fail("socketpair");
        if (write(pair[0], "!", 1) != 1 || read(pair[1], text, 1) != 1) fail("socket");
        close(pair[0]), close(pair[1]);
    }
    if (!strcmp(what, "children")) {
        fflush(stdout);
        if (system("exit 3") != 3 << 8) fail("system");
        pid_t child;
        char *arguments[] = {"sh", "-c", "env | grep -c -e TRELLIS -e LD_PRELOAD > count; exit 4", NULL};
        if (posix_spawnp(&child, "sh", NULL, NULL, arguments, environ)) fail("posix_spawn");
        int status;
        if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 4) fail("waitpid");
    }
    if (!strcmp(what, "signals")) {
        sigset_t none;
        sigemptyset(&none);
        pthread_sigmask(SIG_SETMASK, &none, NULL);
        signal(SIGUSR1, on_signal);
        __atomic_store_n(&file, 1, __ATOMIC_SEQ_CST);
        while (!signalled) usleep(1000);
    }
    if (!strcmp(what, "state")) {
        // The second number of a sequence that main began, and the second word of its text.
        srand(7);
        int first = rand(), second = rand();
        srand(7);
        if (rand() != first || rand() != second) fail("rand");
        char *word = strtok(NULL, " ");
        if (!word || strcmp(word, "two")) fail("strtok");
        file = second;
        srand(7);
        rand();
    }
    if (!strcmp(what, "fork") && fork() == 0) _exit(0);
    return NULL;
}

static void last(void) { printf("last %d\n", getpid() == process); }

int main(int count, char **arguments) {
    if (count < 2) return 2;
    what = arguments[1];
    process = getpid();
    atexit(last);
    pthread_t thread;
    if (!strcmp(what, "busy")) {
        pthread_create(&thread, NULL, wait_for_ever, NULL);
        pthread_create(&thread, NULL, wait_for_ever, NULL);
        usleep(20000);
        return 4;
    }
    if (!strcmp(what, "together")) {
        pthread_barrier_init(&start, NULL, 5);
        for (int i = 0; i < 4; i++) pthread_create(&thread, NULL, end_together, NULL);
        end_together(NULL);
    }
    if (!strcmp(what, "files")) {
        stream = fopen("stream", "w");
        FILE *start = fopen("text", "w");
        fputs("abcdefghi", start);
        fclose(start);
        file = open("text", O_RDONLY);
        char text[10] = "";
        if (!stream || read(file, text, 3) != 3 || strcmp(text, "abc")) fail("read in main");
    }
    static char words[] = "one two three";
    if (!strcmp(what, "state") && strcmp(strtok(words, " "), "one")) fail("strtok in main");
    if (pthread_create(&thread, NULL, act, NULL)) fail("pthread_create");
    if (!strcmp(what, "leave")) pthread_exit(NULL);
    if (!strcmp(what, "signals")) {
        while (__atomic_load_n(&file, __ATOMIC_SEQ_CST) != 1) usleep(1000);
        if (pthread_kill(thread, SIGUSR1)) fail("pthread_kill");
    }
    if (pthread_join(thread, NULL)) fail("pthread_join");
    if (!strcmp(what, "files")) {
        char text[10] = "", folder[1000];
        if (pread(file, text, 9, 0) != 3 || strcmp(text, "xyz")) fail("pread in main");
        if (!strstr(getcwd(folder, sizeof folder), "/made")) fail("getcwd");
        fprintf(stream, "from main\n");
        if (fclose(stream)) fail("fclose");
    }
    if (!strcmp(what, "signals") && signalled != SIGUSR1) return 1;
    if (!strcmp(what, "state") && (rand() != file || strcmp(strtok(NULL, " "), "three"))) fail("state in main");
    return 0;
}
