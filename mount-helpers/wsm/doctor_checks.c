// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "child.h"
#include "doctor.h"
#include "files.h"
#include "mounts.h"
#include "wsm.h"

#define TRY_TIMEOUT_MS 10000
#define ANSWER_TIMEOUT_MS 5000
#define FEW_WATCHES 4096

static bool exists(const char *path)
{
    return access(path, R_OK) == 0;
}

/* ── confinement of local jobs ───────────────────────────────────────────────────────────── */

/* The same kinds of namespaces and mounts that a local sandbox needs. */
static const char *const trial[] = {
    "bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--new-session",
    "--cap-drop", "ALL", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--",
    "/bin/true", NULL,
};

static void say_how_to_allow(struct finding *f)
{
    finding_say(f->mend, "user namespaces must be allowed: sysctl kernel.unprivileged_userns_clone=1 (Debian), "
                         "kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), user.max_user_namespaces > 0; for "
                         "a container: --security-opt seccomp=unconfined --security-opt systempaths=unconfined");
}

static enum verdict check_confinement(const char *checked, struct finding *f)
{
    cleanup_free char *said = NULL;
    int status;

    if (strstr(checked, " confinement ")) /* it has tried that itself, with what would be mounted */
        return OK;
    status = child_run(trial, TRY_TIMEOUT_MS, &said);
    if (status == 0) {
        finding_say(f->found, "bubblewrap works");
        return OK;
    }
    if (status == 127) {
        finding_say(f->found, "bubblewrap is not there, so local jobs cannot be confined");
        finding_say(f->mend, "install it (as root: apt-get install bubblewrap)");
        return MISSING;
    }
    finding_say(f->found, "bubblewrap does not work: %.*s", said ? (int)strcspn(said, "\n") : 0, said ? said : "");
    say_how_to_allow(f);
    return MISSING;
}

/* ── watches ─────────────────────────────────────────────────────────────────────────────── */

static long number_in(const char *path)
{
    cleanup_free char *text = file_read(AT_FDCWD, path);

    return text ? strtol(text, NULL, 10) : -1;
}

/* inotify watches in one process's fdinfo files: their lines say so. */
static long watches_of(const char *fdinfo)
{
    cleanup_dir DIR *d = opendir(fdinfo);
    struct dirent *e;
    long n = 0;

    while (d && (e = readdir(d))) {
        cleanup_free char *path = text_format("%s/%s", fdinfo, e->d_name);
        cleanup_free char *text = e->d_name[0] == '.' ? NULL : file_read(AT_FDCWD, path);
        for (const char *at = text; at && (at = strstr(at, "inotify wd:")); at++)
            n++;
    }
    return n;
}

/* Of all processes of our user; the limit is a user's. */
static long watches_used(void)
{
    cleanup_dir DIR *d = opendir("/proc");
    struct dirent *e;
    long n = 0;

    while (d && (e = readdir(d))) {
        struct stat st;
        if (e->d_name[0] < '0' || e->d_name[0] > '9')
            continue;
        cleanup_free char *path = text_format("/proc/%s/fdinfo", e->d_name);
        if (stat(path, &st) == 0 && st.st_uid == geteuid())
            n += watches_of(path);
    }
    return n;
}

static enum verdict check_watches(const char *checked, struct finding *f)
{
    long limit = number_in("/proc/sys/fs/inotify/max_user_watches"), used = watches_used();

    (void)checked;
    if (limit < 0) {
        finding_say(f->found, "this kernel has no inotify");
        finding_say(f->mend, "changes made inside a sandbox are then seen within a second, not at once");
        return NOTE;
    }
    finding_say(f->found, "%ld of %ld are free", limit > used ? limit - used : 0, limit);
    finding_say(f->mend, "few are left: as root sysctl fs.inotify.max_user_watches=%d", 524288);
    return limit - used < FEW_WATCHES ? NOTE : OK;
}

/* ── other backends' engines and credentials ─────────────────────────────────────────────── */

/* The path of the engine's socket; NULL: DOCKER_HOST names another kind of place. */
static const char *docker_socket(void)
{
    const char *host = getenv("DOCKER_HOST");

    if (!host || !*host)
        return "/var/run/docker.sock";
    return strncmp(host, "unix://", 7) == 0 ? host + 7 : NULL;
}

static int connect_unix(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    cleanup_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0 || strlen(path) >= sizeof(address.sun_path))
        return fd < 0 ? -errno : -ENAMETOOLONG;
    strcpy(address.sun_path, path);
    return connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ? -errno : 0;
}

static enum verdict check_docker(const char *checked, struct finding *f)
{
    const char *path = docker_socket();
    int r = path ? connect_unix(path) : 0;

    (void)checked;
    if (!path) {
        finding_say(f->found, "DOCKER_HOST names %s, which was not tried", getenv("DOCKER_HOST"));
        return NOTE;
    }
    finding_say(f->found, r < 0 ? "no engine at %s: %s" : "an engine listens at %s", path, strerror(-r));
    if (r == -EACCES)
        finding_say(f->mend, "workspaces in containers need it: as root usermod -aG docker USER");
    else
        finding_say(f->mend, "workspaces in containers need one: start it, or name it by DOCKER_HOST");
    return r < 0 ? NOTE : OK;
}

/* Where the credentials are looked for, in this order; KUBECONFIG alone where it is set. */
static const char *kubernetes_credentials(const char *usual)
{
    static const char in_pod[] = "/var/run/secrets/kubernetes.io/serviceaccount/token";
    const char *set = getenv("KUBECONFIG");

    if (set && *set)
        return set;
    return exists(usual) || !exists(in_pod) ? usual : in_pod;
}

static enum verdict check_kubernetes(const char *checked, struct finding *f)
{
    const char *home = getenv("HOME");
    cleanup_free char *usual = text_format("%s/.kube/config", home ? home : "");
    const char *path = kubernetes_credentials(usual);
    bool there = exists(path);

    (void)checked;
    finding_say(f->found, there ? "credentials in %s" : "no credentials: %s cannot be read", path);
    finding_say(f->mend, "workspaces in Pods need them: name a file by KUBECONFIG");
    return there ? OK : NOTE;
}

static enum verdict check_e2b(const char *checked, struct finding *f)
{
    const char *key = getenv("E2B_API_KEY");

    (void)checked;
    finding_say(f->found, key && *key ? "E2B_API_KEY is set" : "E2B_API_KEY is not set");
    finding_say(f->mend, "workspaces at e2b need it");
    return key && *key ? OK : NOTE;
}

const struct doctor_check doctor_checks[] = {
    {"confinement", check_confinement, false},
    {"inotify watches", check_watches, false},
    {"docker", check_docker, true},
    {"kubernetes", check_kubernetes, true},
    {"e2b", check_e2b, true},
    {0},
};

/* ── mounts ──────────────────────────────────────────────────────────────────────────────── */

static int ask_mount(const char *point)
{
    cleanup_free char *path = text_format("%s/.wsm/status", point), *text = file_read(AT_FDCWD, path);

    return text ? 0 : errno;
}

static enum verdict check_mount(const char *point, struct finding *f)
{
    int status = child_call(ask_mount, point, ANSWER_TIMEOUT_MS);

    if (status == 0)
        finding_say(f->found, "%s answers", point);
    else if (status == ENOTCONN || status == ECONNABORTED)
        finding_say(f->found, "%s is dead: its daemon has ended", point);
    else if (status > 0)
        finding_say(f->found, "%s: %s", point, strerror(status));
    else
        finding_say(f->found, "%s does not answer within %d s", point, ANSWER_TIMEOUT_MS / 1000);
    finding_say(f->mend, "mount it again as it was, which replaces it; or: umount -l %s", point);
    if (status == EACCES)
        finding_say(f->mend, "it is another user's");
    return status == 0 ? OK : NOTE;
}

void doctor_mounts(void)
{
    struct mounts m;

    mounts_read(&m);
    for (size_t i = 0; i < m.n; i++) {
        struct finding f = {0};
        enum verdict v;
        if (strcmp(m.list[i].root, "/") != 0)
            continue;
        v = check_mount(m.list[i].point, &f);
        doctor_print(v, "a mount", &f);
    }
    mounts_free(&m);
}
