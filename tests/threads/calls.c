// System calls with memory in the heap and in large variables, whose pages a thread of another node takes all the time.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "check.h"

enum { PAGE = 4096, PAGES = 400, LARGE = 300 * PAGE + 77, ROUNDS = 6 };

static char variable[PAGES * PAGE];
static char *block, *memory;
static int is_over;
static volatile sig_atomic_t handled;
static _Thread_local sigjmp_buf before_signal;

// Takes each page, and changes the last bytes of it, which nothing else uses.
static void *take(void *unused) {
    for (unsigned count = 0; !__atomic_load_n(&is_over, __ATOMIC_RELAXED); count++) {
        char *page = (count & 1 ? block : variable) + count / 2 % PAGES * PAGE;
        __atomic_fetch_add((int *)(page + PAGE - 4), 1, __ATOMIC_RELAXED);
    }
    return unused;
}

// A place at the start of one of the first pages.
static void *at(int page) { return memory + page * PAGE; }

static void *text(int page, const char *from) { return strcpy(at(page), from); }

static void fill(char *to, size_t bytes, int seed) {
    for (size_t i = 0; i < bytes; i++) {
        if (i % PAGE < PAGE - 4) to[i] = (char)(i * 31 + i / 977 + (size_t)seed);
    }
}

// The bytes that no other thread changes.
static int is_filled(const char *bytes, size_t count, int seed) {
    for (size_t i = 0; i < count; i++) {
        if (i % PAGE < PAGE - 4 && bytes[i] != (char)(i * 31 + i / 977 + (size_t)seed)) return 0;
    }
    return 1;
}

static void files(int round) {
    char *name = text(0, "file"), *large = at(20);
    int file = open(name, O_CREAT | O_RDWR | O_TRUNC, 0600);
    CHECK(file >= 0);
    fill(large, LARGE, round);
    CHECK(write(file, large, LARGE) == LARGE);
    memset(large, 0, 100 * PAGE);
    CHECK(pread(file, large, LARGE, 0) == LARGE && is_filled(large, LARGE, round));
    struct iovec *list = at(1);
    list[0] = (struct iovec){at(2), 3000}, list[1] = (struct iovec){at(3), 1096};
    CHECK(preadv(file, list, 2, 0) == PAGE && is_filled(at(2), 3000, round));
    CHECK(memcmp(at(3), large + 3000, 1000) == 0);
    list[0] = (struct iovec){text(2, "abc"), 3}, list[1] = (struct iovec){text(3, "def"), 3};
    CHECK(pwritev2(file, list, 2, 5, 0) == 6 && lseek(file, 5, SEEK_SET) == 5);
    CHECK(read(file, at(4), 6) == 6 && memcmp(at(4), "abcdef", 6) == 0);
    CHECK(syscall(SYS_pwrite64, file, text(5, "raw"), 3L, 0L) == 3);
    struct stat *status = at(6);
    CHECK(stat(name, status) == 0 && status->st_size == LARGE && fstat(file, at(7)) == 0);
    CHECK(lstat(name, at(7)) == 0 && ((struct stat *)at(7))->st_ino == status->st_ino);
    CHECK(statx(AT_FDCWD, name, 0, STATX_SIZE, at(8)) == 0 && ((struct statx *)at(8))->stx_size == LARGE);
    CHECK(symlink(name, text(9, "link")) == 0 && readlink(at(9), at(10), 100) == 4);
    CHECK(memcmp(at(10), "file", 4) == 0 && rename(at(9), text(11, "moved")) == 0 && unlink(at(11)) == 0);
    CHECK(mkdir(text(9, "folder"), 0700) == 0 && chdir(at(9)) == 0 && getcwd(at(10), 1000) == at(10));
    CHECK(strstr(at(10), "/folder") && chdir(text(11, "..")) == 0 && access(at(9), X_OK) == 0);
    int folder = open(at(9), O_RDONLY | O_DIRECTORY);
    long bytes = syscall(SYS_getdents64, folder, at(12), 1000L);
    CHECK(bytes == 48 && close(folder) == 0 && rmdir(at(9)) == 0 && truncate(name, 10) == 0);
    struct timespec *times = at(13);
    times[0] = times[1] = (struct timespec){1000, 0};
    CHECK(futimens(file, times) == 0 && fstat(file, at(7)) == 0 && ((struct stat *)at(7))->st_mtime == 1000);
    CHECK(fcntl(file, F_GETLK, memset(at(13), 0, sizeof(struct flock))) == 0 && close(file) == 0);
    FILE *stream = fopen(name, text(14, "w+"));
    CHECK(stream && fwrite(large, 1, LARGE, stream) == LARGE);
    rewind(stream);
    memset(large, 0, 100 * PAGE);
    CHECK(fread(large, 1, LARGE, stream) == LARGE && is_filled(large, LARGE, round) && fclose(stream) == 0);
}

static void messages(void) {
    int *pair = at(0);
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
    CHECK(send(pair[0], text(1, "one"), 3, 0) == 3 && send(pair[0], text(1, "four"), 4, 0) == 4);
    CHECK(recv(pair[1], at(2), 100, 0) == 3 && memcmp(at(2), "one", 3) == 0);
    struct msghdr *message = memset(at(3), 0, sizeof *message);
    struct iovec *list = at(4);
    *list = (struct iovec){at(5), 100};
    message->msg_iov = list, message->msg_iovlen = 1;
    CHECK(recvmsg(pair[1], message, 0) == 4 && memcmp(at(5), "four", 4) == 0);
    // A descriptor in a message.
    char *control = memset(at(6), 0, CMSG_SPACE(sizeof(int)));
    message->msg_control = control, message->msg_controllen = CMSG_SPACE(sizeof(int));
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &pair[0], sizeof(int));
    *list = (struct iovec){text(5, "five"), 4};
    CHECK(sendmsg(pair[0], message, 0) == 4);
    memset(control, 0, CMSG_SPACE(sizeof(int)));
    CHECK(recvmsg(pair[1], message, 0) == 4 && CMSG_FIRSTHDR(message)->cmsg_type == SCM_RIGHTS);
    int passed;
    memcpy(&passed, CMSG_DATA(CMSG_FIRSTHDR(message)), sizeof passed);
    CHECK(passed > 2 && write(passed, text(7, "!"), 1) == 1 && close(passed) == 0);
    CHECK(read(pair[1], at(8), 9) == 1 && *(char *)at(8) == '!');
    struct mmsghdr *many = memset(at(9), 0, 2 * sizeof *many);
    for (int i = 0; i < 2; i++) {
        ((struct iovec *)at(10))[i] = (struct iovec){text(11 + i, i ? "second" : "first"), i ? 6 : 5};
        many[i].msg_hdr.msg_iov = (struct iovec *)at(10) + i, many[i].msg_hdr.msg_iovlen = 1;
    }
    CHECK(sendmmsg(pair[0], many, 2, 0) == 2 && memset(at(11), 0, 9) && recvmmsg(pair[1], many, 2, 0, NULL) == 2);
    CHECK(many[1].msg_len == 6 && memcmp(at(11), "first", 5) == 0 && close(pair[0]) == 0 && close(pair[1]) == 0);
    // Addresses.
    int server = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in *address = memset(at(1), 0, sizeof *address);
    address->sin_family = AF_INET, address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t *length = at(2);
    *length = sizeof *address;
    CHECK(bind(server, (void *)address, sizeof *address) == 0 && listen(server, 1) == 0);
    CHECK(getsockname(server, (void *)address, length) == 0 && connect(client, (void *)address, *length) == 0);
    memset(at(3), 0, sizeof *address);
    int accepted = accept(server, at(3), length);
    CHECK(accepted >= 0 && ((struct sockaddr_in *)at(3))->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
    int *option = at(4);
    CHECK(getsockopt(accepted, SOL_SOCKET, SO_TYPE, option, length) == 0 && *option == SOCK_STREAM);
    struct pollfd *polled = at(5);
    *polled = (struct pollfd){accepted, POLLIN, 0};
    CHECK(poll(polled, 1, 0) == 0 && write(client, text(6, "x"), 1) == 1 && poll(polled, 1, 1000) == 1);
    CHECK(polled->revents == POLLIN && ppoll(polled, 1, memset(at(7), 0, 16), NULL) == 1);
    fd_set *set = memset(at(8), 0, sizeof *set);
    FD_SET(accepted, set);
    struct timeval *limit = at(9);
    *limit = (struct timeval){1, 0};
    CHECK(select(accepted + 1, set, NULL, NULL, limit) == 1 && FD_ISSET(accepted, set));
    // The rest of the time is told, wherever the sets are.
    *limit = (struct timeval){0, 1500};
    CHECK(select(0, NULL, NULL, NULL, limit) == 0 && limit->tv_usec == 0 && limit->tv_sec == 0);
    struct timeval brief = {0, 1500};
    FD_ZERO(set);
    CHECK(select(1, set, NULL, NULL, &brief) == 0 && brief.tv_usec == 0);
    int epoll = epoll_create1(0);
    struct epoll_event *event = at(10);
    *event = (struct epoll_event){.events = EPOLLIN, .data.u64 = 77};
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, accepted, event) == 0 && memset(event, 0, sizeof *event));
    CHECK(epoll_wait(epoll, event, 1, 1000) == 1 && event->data.u64 == 77 && close(epoll) == 0);
    close(server), close(client), close(accepted);
    uint64_t *value = at(11);
    int counter = eventfd(3, 0), timer = timerfd_create(CLOCK_MONOTONIC, 0);
    CHECK(read(counter, value, 8) == 8 && *value == 3);
    struct itimerspec *soon = memset(at(12), 0, sizeof *soon);
    soon->it_value.tv_nsec = 1000;
    CHECK(timerfd_settime(timer, 0, soon, NULL) == 0 && read(timer, value, 8) == 8 && *value >= 1);
    close(counter), close(timer);
}

static void others(void) {
    struct timespec *time = at(0);
    *time = (struct timespec){0, 1000};
    CHECK(nanosleep(time, at(1)) == 0 && syscall(SYS_clock_gettime, CLOCK_REALTIME, time) == 0 && time->tv_sec > 1e9);
    CHECK(clock_nanosleep(CLOCK_MONOTONIC, 0, memset(at(2), 0, sizeof *time), NULL) == 0);
    CHECK(uname(at(3)) == 0 && strcmp(((struct utsname *)at(3))->sysname, "Linux") == 0);
    CHECK(prctl(PR_SET_NAME, text(4, "somebody")) == 0 && prctl(PR_GET_NAME, at(5)) == 0);
    CHECK(strcmp(at(5), "somebody") == 0);
    char **arguments = at(6), **environment = at(7);
    arguments[0] = text(8, "sh"), arguments[1] = text(9, "-c"), arguments[2] = text(10, "exit $NUMBER");
    arguments[3] = NULL, environment[0] = text(11, "NUMBER=7"), environment[1] = NULL;
    pid_t *child = at(12);
    int *status = at(13);
    CHECK(posix_spawn(child, text(14, "/bin/sh"), NULL, NULL, arguments, environment) == 0);
    CHECK(waitpid(*child, status, 0) == *child && WIFEXITED(*status) && WEXITSTATUS(*status) == 7);
    CHECK(posix_spawnp(child, at(8), NULL, NULL, arguments, environment) == 0);
    CHECK(wait4(*child, status, 0, at(15)) == *child && WEXITSTATUS(*status) == 7);
    CHECK(system(text(10, "exit 3")) == 3 << 8);
}

static ucontext_t caller, coroutine;
static long coroutine_sum;

// Uses a stack in the heap, also for system calls.
static void work(void) {
    for (int i = 0; i < 20; i++) {
        volatile long depth[2000];
        for (int j = 0; j < 2000; j++) depth[j] = i + j;
        CHECK(getppid() != getpid());
        for (int j = 0; j < 2000; j++) coroutine_sum += depth[j];
        swapcontext(&coroutine, &caller);
    }
}

static void coroutines(void) {
    char *stack = malloc(64 * PAGE);
    coroutine_sum = 0;
    getcontext(&coroutine);
    coroutine.uc_stack.ss_sp = stack, coroutine.uc_stack.ss_size = 64 * PAGE, coroutine.uc_link = &caller;
    makecontext(&coroutine, work, 0);
    for (int i = 0; i < 21; i++) swapcontext(&caller, &coroutine);
    CHECK(coroutine_sum == 20L * 1999 * 1000 + 2000L * 190);
    free(stack);
}

static void handle(int signal) {
    *(int *)at(0) += signal;
    handled = signal;
}

static void leave(int signal) {
    handled = signal;
    siglongjmp(before_signal, 1);
}

static void signals(void) {
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK};
    sigfillset(&action.sa_mask);
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    stack_t stack = {.ss_sp = at(40), .ss_size = 16 * PAGE}, before;
    CHECK(sigaltstack(&stack, NULL) == 0 && sigaltstack(NULL, &before) == 0 && before.ss_sp == stack.ss_sp);
    // All signals are blocked, and pages still come.
    sigset_t all, mask;
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_SETMASK, &all, &mask) == 0);
    for (int page = 0; page < 40; page++) *(int *)at(page) = page;
    *(int *)at(0) = 0;
    CHECK(pthread_kill(pthread_self(), SIGUSR1) == 0);
    sigdelset(&all, SIGUSR1);
    CHECK(sigsuspend(&all) == -1 && errno == EINTR && handled == SIGUSR1 && *(int *)at(0) == SIGUSR1);
    CHECK(pthread_sigmask(SIG_SETMASK, &mask, NULL) == 0);
    // The program's own handler for the signal of faults.
    struct sigaction found;
    CHECK(sigaction(SIGBUS, &action, NULL) == 0 && sigaction(SIGBUS, NULL, &found) == 0);
    CHECK(found.sa_handler == handle && raise(SIGBUS) == 0 && handled == SIGBUS);
    // A handler that is left by a jump, twice: the alternate stack is there again.
    action.sa_handler = leave;
    CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
    for (int i = 0; i < 2; i++) {
        handled = 0;
        if (!sigsetjmp(before_signal, 1)) pthread_kill(pthread_self(), SIGUSR2);
        CHECK(handled == SIGUSR2);
        coroutines();
    }
    stack.ss_flags = SS_DISABLE;
    CHECK(sigaltstack(&stack, NULL) == 0);
}

static void *call(void *unused) {
    for (int round = 0; round < ROUNDS; round++) {
        memory = round & 1 ? block : variable;
        files(round);
        messages();
        others();
        signals();
        coroutines();
    }
    return unused;
}

int main(void) {
    block = aligned_alloc(PAGE, PAGES * PAGE);
    pthread_t taker, caller_elsewhere;
    // Pages are taken at node 1 while node 0 calls, and at node 0 while a thread of another node calls.
    CHECK(pthread_create(&taker, NULL, take, NULL) == 0);
    call(NULL);
    char **arguments = at(3);
    arguments[0] = text(4, "sh"), arguments[1] = text(5, "-c"), arguments[2] = text(6, "exit 9"), arguments[3] = NULL;
    for (int round = 0; round < 100; round++) {
        int status;
        pid_t process = vfork();
        if (!process) {
            execv("/bin/sh", arguments);
            _exit(127);
        }
        CHECK(waitpid(process, &status, 0) == process && WEXITSTATUS(status) == 9);
    }
    FILE *child = popen(text(0, "echo from a child"), text(1, "r"));
    CHECK(child && fgets(at(2), 100, child) && strcmp(at(2), "from a child\n") == 0 && pclose(child) == 0);
    __atomic_store_n(&is_over, 1, __ATOMIC_SEQ_CST);
    CHECK(pthread_join(taker, NULL) == 0);
    __atomic_store_n(&is_over, 0, __ATOMIC_SEQ_CST);
    CHECK(pthread_create(&caller_elsewhere, NULL, call, NULL) == 0);
    CHECK(pthread_create(&taker, NULL, take, NULL) == 0);
    CHECK(pthread_join(caller_elsewhere, NULL) == 0);
    __atomic_store_n(&is_over, 1, __ATOMIC_SEQ_CST);
    CHECK(pthread_join(taker, NULL) == 0);
    puts("calls: all right");
    return 0;
}
