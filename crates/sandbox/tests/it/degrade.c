// Makes this process and its children ones of a poorer machine: `degrade NUMBER=ERROR… [landlock-abi=N] -- COMMAND…`.
// A system call of that number then ends with the error; with error 0 it says that it worked and does nothing. A number
// may be followed by an argument and the bits of it that matter: `272&0:0x10000000=1`, or by its value: `157@0:22=1`.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOAD(offset) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset)
#define ARGUMENT(number) (offsetof(struct seccomp_data, args) + 8 * (number))
#define RETURN(what) BPF_STMT(BPF_RET | BPF_K, what)

static int install(struct sock_filter *filter, int length, int flags) {
    struct sock_fprog program = {length, filter};
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

static int fail(const char *word) {
    fprintf(stderr, "degrade: %s: %s\n", word, strerror(errno));
    return 2;
}

static int deny(const char *word) {
    unsigned number, argument, value, error;
    char kind = '=';
    if (sscanf(word, "%u%c", &number, &kind) != 2) return -1;
    const char *rest = strchr(word, kind) + 1;
    if (kind != '=' && sscanf(rest, "%u:%i=%u", &argument, (int *)&value, &error) != 3) return -1;
    if (kind == '=' && sscanf(rest, "%u", &error) != 1) return -1;
    struct sock_filter whole[] = {
        LOAD(offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        RETURN(SECCOMP_RET_ERRNO | error),
        RETURN(SECCOMP_RET_ALLOW),
    };
    struct sock_filter partial[] = {
        LOAD(offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 3),
        LOAD(ARGUMENT(argument & 7)),
        BPF_JUMP(BPF_JMP | (kind == '&' ? BPF_JSET : BPF_JEQ) | BPF_K, value, 0, 1),
        RETURN(SECCOMP_RET_ERRNO | error),
        RETURN(SECCOMP_RET_ALLOW),
    };
    return kind == '=' ? install(whole, 4, 0) : install(partial, 6, 0);
}

// Answers for the kernel whenever somebody asks for the version of Landlock (flag 1). Ends with the child.
static int answer(int listener, pid_t child, long long version) {
    struct seccomp_notif question = {0};
    struct pollfd ready = {listener, POLLIN, 0};
    while (poll(&ready, 1, -1) == 1 && !(ready.revents & POLLHUP)) {
        memset(&question, 0, sizeof question);
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &question) < 0) continue;
        struct seccomp_notif_resp reply = {.id = question.id, .val = version};
        ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &reply);
    }
    int status;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int landlock_of(long long version, char **command) {
    struct sock_filter ask[] = {
        LOAD(offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 444 /* landlock_create_ruleset */, 0, 3),
        LOAD(ARGUMENT(2)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, 1),
        RETURN(SECCOMP_RET_USER_NOTIF),
        RETURN(SECCOMP_RET_ALLOW),
    };
    // With a table of descriptors in common, so that the child's listener is the parent's. The next program of the
    // child has a table of its own, and the listener is closed in it.
    int ends[2];
    if (pipe(ends) < 0) return fail("pipe");
    long child = syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
    if (child < 0) return fail("clone");
    if (child == 0) {
        int mine = install(ask, 6, SECCOMP_FILTER_FLAG_NEW_LISTENER);
        write(ends[1], &mine, sizeof mine);
        if (mine >= 0) execv(command[0], command);
        _exit(fail(command[0]));
    }
    int theirs;
    if (read(ends[0], &theirs, sizeof theirs) != sizeof theirs || theirs < 0) return fail("listener");
    return answer(theirs, child, version);
}

int main(int argc, char **argv) {
    long long version = -1;
    int i = 1;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) return fail("no_new_privs");
    for (; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (sscanf(argv[i], "landlock-abi=%lld", &version) == 1) continue;
        if (deny(argv[i]) < 0) return fail(argv[i]);
    }
    if (i + 1 >= argc) return 2;
    if (version >= 0) return landlock_of(version, argv + i + 1);
    execv(argv[i + 1], argv + i + 1);
    return fail(argv[i + 1]);
}
