// 32 threads and 32 processes, all at once, each making the same attempts: `crowd OUTSIDE VICTIM SOCKET PORT MINE`.
// Nothing is reported: what came of it is looked at from outside. What can be read of the secret is written to MINE.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 32, CHILDREN = 32 };

static char **a;
static pthread_barrier_t *start;

static void read_secret(const char *secret, const char *kind, long number) {
    char path[4096], text[64];
    int fd = open(secret, O_RDONLY);
    long length = fd < 0 ? 0 : read(fd, text, sizeof text);
    if (length <= 0) return;
    snprintf(path, sizeof path, "%s/%s-%ld", a[5], kind, number);
    int copy = open(path, O_WRONLY | O_CREAT, 0600);
    write(copy, text, length);
    close(copy);
    close(fd);
}

static void *attempts(const char *kind, long number) {
    char secret[4096], made[4096];
    struct sockaddr_un local = {AF_UNIX};
    struct sockaddr_in far = {AF_INET, htons(atoi(a[4])), {htonl(INADDR_LOOPBACK)}};
    snprintf(secret, sizeof secret, "%s/secret", a[1]);
    snprintf(made, sizeof made, "%s/%s-%ld", a[1], kind, number);
    strncpy(local.sun_path + 1, a[3], sizeof local.sun_path - 2);
    pthread_barrier_wait(start);
    read_secret(secret, kind, number);
    close(open(made, O_WRONLY | O_CREAT, 0600));
    int fd = open(secret, O_WRONLY | O_APPEND);
    if (fd >= 0) { write(fd, "x", 1); close(fd); }
    truncate(secret, 1 + number % 5);
    kill(atoi(a[2]), SIGUSR1);
    ptrace(PTRACE_SEIZE, atoi(a[2]), 0, 0);
    connect(socket(AF_UNIX, SOCK_STREAM, 0), (void *)&local, sizeof(sa_family_t) + 1 + strlen(a[3]));
    connect(socket(AF_INET, SOCK_STREAM, 0), (void *)&far, sizeof far);
    connect(socket(AF_INET, SOCK_STREAM, 262), (void *)&far, sizeof far);
    // A thread cannot make a user namespace; a process can, and what it mounts there nobody else sees.
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) mount(a[1], a[5], NULL, MS_BIND, NULL);
    read_secret(secret, kind, number);
    return NULL;
}

static void *thread(void *number) { return attempts("thread", (long)number); }

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    a = argv;
    int memory = syscall(SYS_memfd_create, "barrier", 0);
    ftruncate(memory, 4096);
    start = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    pthread_barrierattr_t shared;
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(start, &shared, THREADS + CHILDREN);
    pthread_t threads[THREADS];
    for (long i = 0; i < CHILDREN; i++) {
        pid_t child = fork();
        if (child < 0) return 3;
        if (child == 0) { attempts("child", i); _exit(0); }
    }
    for (long i = 0; i < THREADS; i++) if (pthread_create(&threads[i], NULL, thread, (void *)i)) return 3;
    for (long i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    int status, ended = 0;
    while (wait(&status) > 0) if (status == 0) ended++;
    return ended == CHILDREN ? 0 : 4;
}
