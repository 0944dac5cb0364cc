/* Files by stream, descriptor, mapping and name; functions of the library with a second result. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void streams(const char *name) {
    FILE *stream = fopen(name, "w");
    for (int at = 0; at < 3000; at++) {
        putc_unlocked('a' + at % 26, stream);
        if (at % 50 == 49)
            fputc('\n', stream);
    }
    fclose(stream);
    stream = freopen(name, "r", stdin);
    unsigned sum = 0, lines = 0;
    for (int one; (one = getc_unlocked(stream)) != EOF;) {
        sum = sum * 31 + (unsigned)one;
        lines += one == '\n';
    }
    printf("%u %u %d\n", sum, lines, feof_unlocked(stream) != 0);
}

static void descriptors(const char *name) {
    int descriptor = open(name, O_RDWR);
    struct stat *status = calloc(1, sizeof *status);
    printf("%d", fstat(descriptor, status));
    printf(" %ld\n", (long)status->st_size);
    struct flock *lock = malloc(sizeof *lock);
    *lock = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10};
    printf("%d", fcntl(descriptor, F_GETLK, lock));
    printf(" %d\n", lock->l_type == F_UNLCK);
    char *mapped = mmap(NULL, 3060, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    memcpy(mapped + 10, "mapped", 6);
    mapped[16] = '!';
    char read_again[20] = "";
    printf("%zd %.10s\n", pread(descriptor, read_again, 10, 8), read_again);
    munmap(mapped, 3060);
    close(descriptor);
    free(lock);
    free(status);
}

static void names(char *name) {
    char *link_name = malloc(200), *target = calloc(1, 200);
    sprintf(link_name, "%s.link", name);
    printf("%d", symlink(name, link_name));
    printf(" %d %d\n", readlink(link_name, target, 200) == (ssize_t)strlen(name), strcmp(target, name));
    unlink(link_name);
    char folder[] = "/tmp/trellis-suite-XXXXXX";
    printf("%d", mkdtemp(folder) == folder);
    DIR *directory = opendir(folder);
    int entries = 0;
    while (readdir(directory))
        entries++;
    closedir(directory);
    printf(" %d %d\n", entries, rmdir(folder));
    free(link_name);
    free(target);
}

int main(void) {
    char name[] = "/tmp/trellis-suite-XXXXXX";
    close(mkstemp(name));
    streams(name);
    descriptors(name);
    names(name);
    remove(name);
    int *exponent = malloc(sizeof *exponent);
    double *whole = malloc(sizeof *whole), volatile_number = atof("-13.625");
    printf("%g %d\n", frexp(volatile_number, exponent), *exponent);
    printf("%g %g\n", modf(volatile_number, whole), *whole);
    printf("%s\n", setlocale(LC_ALL, "C"));
    struct rlimit limit;
    printf("%d\n", getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur > 0);
    fflush(stdout);
    int status = 0;
    if (fork() == 0)
        _exit(7);
    wait(&status);
    printf("%d\n", WEXITSTATUS(status));
    free(exponent);
    free(whole);
}
