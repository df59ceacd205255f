// SPDX-License-Identifier: Apache-2.0
#include "fs/check.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 17)
#include <fuse_lowlevel.h>

#include "backends/backends.h"
#include "fs/base/cleanup.h"
#include "fs/mountpoint.h"

#define CAP_SYS_ADMIN_BIT 21 /* linux/capability.h */

enum verdict { OK, NOTE, MISSING };

/* What one check found. */
struct finding {
    char found[ERR_TEXT_MAX];
    char mend[ERR_TEXT_MAX]; /* or for a note: what is lost */
    bool only_jobs;          /* MISSING, and a mount would do without */
};

static void say(char *to, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(char *to, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(to, ERR_TEXT_MAX, fmt, ap);
    va_end(ap);
}

/* ── the kernel ──────────────────────────────────────────────────────────────────────────── */

static bool kernel_at_least(unsigned major, unsigned minor)
{
    struct utsname u;
    unsigned a = 0, b = 0;

    return uname(&u) == 0 && sscanf(u.release, "%u.%u", &a, &b) == 2 && (a > major || (a == major && b >= minor));
}

static bool has_sys_admin(void)
{
    cleanup_file FILE *f = fopen("/proc/self/status", "re");
    unsigned long long caps = 0;
    char line[256];

    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "CapEff: %llx", &caps) == 1)
            break;
    return caps >> CAP_SYS_ADMIN_BIT & 1;
}

static enum verdict check_kernel(struct config *c, struct finding *f)
{
    struct utsname u;

    (void)c;
    say(f->found, "%s", uname(&u) == 0 ? u.release : "unknown");
    say(f->mend, "Linux 5.6 or later is needed (openat2)");
    return kernel_at_least(5, 6) ? OK : MISSING;
}

static enum verdict check_proc(struct config *c, struct finding *f)
{
    (void)c;
    if (access("/proc/self/fd", X_OK) == 0 && access("/proc/self/mountinfo", R_OK) == 0) {
        say(f->found, "mounted");
        return OK;
    }
    say(f->found, "not mounted");
    say(f->mend, "mount -t proc proc /proc");
    return MISSING;
}

static enum verdict check_device(struct config *c, struct finding *f)
{
    cleanup_close int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);

    (void)c;
    say(f->found, "%s", fd >= 0 ? "can be opened" : strerror(errno));
    if (fd >= 0)
        return OK;
    if (errno == EACCES || errno == EPERM)
        say(f->mend, "chmod 666 /dev/fuse, as udev does (in a container also: allow the device 10:229)");
    else
        say(f->mend, "modprobe fuse; for a container: --device /dev/fuse");
    return MISSING;
}

/* ── who mounts ──────────────────────────────────────────────────────────────────────────── */

/* Where a program of PATH lies, malloc'ed; NULL when it is not there. */
static char *find_program(const char *name)
{
    const char *env = getenv("PATH");
    cleanup_free char *path = NULL;
    char *save = NULL, *full;

    if (asprintf(&path, "%s:/usr/bin:/bin", env ? env : "") < 0)
        return NULL;
    for (char *dir = strtok_r(path, ":", &save); dir; dir = strtok_r(NULL, ":", &save)) {
        if (asprintf(&full, "%s/%s", dir, name) < 0)
            return NULL;
        if (access(full, X_OK) == 0)
            return full;
        free(full);
    }
    return NULL;
}

static enum verdict check_root(struct config *c, struct finding *f)
{
    (void)c;
    if (has_sys_admin()) {
        say(f->found, "may mount (CAP_SYS_ADMIN)");
        return OK;
    }
    say(f->found, "root without CAP_SYS_ADMIN");
    say(f->mend, "for a container: --cap-add SYS_ADMIN (where AppArmor is on: --security-opt apparmor=unconfined)");
    return MISSING;
}

static enum verdict check_fusermount(struct config *c, struct finding *f)
{
    cleanup_free char *path = find_program("fusermount3");
    struct stat st;

    if (geteuid() == 0)
        return check_root(c, f);
    say(f->mend, "install the package fuse3 (as root: apt-get install fuse3)");
    if (!path || stat(path, &st) < 0) {
        say(f->found, "an ordinary user needs fusermount3, which is not there");
        return MISSING;
    }
    say(f->found, "an ordinary user, with %s", path);
    if (st.st_uid == 0 && (st.st_mode & S_ISUID))
        return OK;
    say(f->found, "an ordinary user needs fusermount3, and %s is not setuid root", path);
    say(f->mend, "as root: chown root %s && chmod u+s %s", path, path);
    return MISSING;
}

static bool fuse_conf_allows_other(void)
{
    cleanup_file FILE *f = fopen("/etc/fuse.conf", "re");
    char line[256];

    while (f && fgets(line, sizeof(line), f)) {
        char word[64];
        if (sscanf(line, " %63s", word) == 1 && strcmp(word, "user_allow_other") == 0)
            return true;
    }
    return false;
}

static enum verdict check_allow_other(struct config *c, struct finding *f)
{
    if (geteuid() == 0) {
        say(f->found, "root may always say allow_other");
        return OK;
    }
    if (fuse_conf_allows_other()) {
        say(f->found, "user_allow_other is set in /etc/fuse.conf");
        return OK;
    }
    say(f->found, "user_allow_other is not set in /etc/fuse.conf");
    say(f->mend, "without it the option allow_other is refused to ordinary users, and nobody else gets into "
                 "their mounts; as root: echo user_allow_other >> /etc/fuse.conf");
    return c->allow_other ? MISSING : NOTE;
}

/* ── what makes it good ──────────────────────────────────────────────────────────────────── */

static enum verdict check_libfuse(struct config *c, struct finding *f)
{
    int v = fuse_version();

    (void)c;
    say(f->found, "%s", fuse_pkgversion());
    say(f->mend, "3.17.1 or later is needed, and not 3.18.0, whose ABI was broken; run mount-helpers/setup and "
                 "build anew");
    return v >= 317 && strcmp(fuse_pkgversion(), "3.18.0") != 0 ? OK : MISSING;
}

static enum verdict check_passthrough(struct config *c, struct finding *f)
{
    bool new_enough = kernel_at_least(6, 9), may = has_sys_admin();

    if (new_enough && may) {
        say(f->found, "possible");
        return OK;
    }
    say(f->found, "not possible: %s", new_enough ? "it needs CAP_SYS_ADMIN" : "it needs Linux 6.9 or later");
    say(f->mend, "reads and writes go through the daemon: correct, but slower");
    return c->passthrough == TRI_ON ? MISSING : NOTE;
}

/* ── directories ─────────────────────────────────────────────────────────────────────────── */

/* What exists of `path`: malloc'ed. */
static char *existing_part(const char *path)
{
    char *part = strdup(path);
    struct stat st;

    while (part && stat(part, &st) < 0 && strcmp(part, "/") != 0) {
        char *slash = strrchr(part, '/');
        slash[slash == part] = '\0';
    }
    return part;
}

/* Can it be used, or be made where it is missing? */
static enum verdict check_dir(const char *path, bool read_only, struct finding *f)
{
    cleanup_free char *part = existing_part(path);
    struct mount_info m;
    struct stat st;

    if (!part || stat(part, &st) < 0 || !S_ISDIR(st.st_mode)) {
        say(f->found, "%s: %s is not a directory", path, part ? part : "");
        say(f->mend, "name another one");
        return MISSING;
    }
    mount_info_find(part, true, &m);
    say(f->found, "%s%s (%s)", path, strcmp(part, path) == 0 ? "" : ", which will be made", m.type ? m.type : "?");
    mount_info_free(&m);
    if (!read_only && faccessat(AT_FDCWD, part, W_OK | X_OK, AT_EACCESS) < 0) {
        say(f->mend, "%s is not writable for uid %u: %s", part, geteuid(), strerror(errno));
        return MISSING;
    }
    if (strcmp(part, path) == 0 && (st.st_uid != geteuid() || (st.st_mode & 077))) {
        say(f->mend, "it belongs to uid %u with mode %04o, must be uid %u with 0700: name another one or, where it "
            "is for wsmfs alone, chown %u %s && chmod 700 %s",
            st.st_uid, st.st_mode & 07777, geteuid(), geteuid(), path, path);
        return MISSING;
    }
    return OK;
}

static enum verdict check_basedir(struct config *c, struct finding *f)
{
    return check_dir(c->basedir, c->read_only, f);
}

static enum verdict check_state_dir(struct config *c, struct finding *f)
{
    cleanup_free char *dir = c->state_dir ? strdup(c->state_dir) : config_default_dir();
    cleanup_free char *inside = NULL;

    /* The name of the default is known with the instance alone. */
    if (!dir || asprintf(&inside, "%s/INSTANCE", dir) < 0)
        return MISSING;
    return check_dir(c->state_dir ? dir : inside, false, f);
}

static enum verdict check_mountpoint(struct config *c, struct finding *f)
{
    struct err e = {0};

    if (!c->mountpoint) {
        say(f->found, "none was named");
        return OK;
    }
    say(f->found, "%s", c->mountpoint);
    if (mountpoint_prepare(c, false, &e) == 0)
        return OK;
    say(f->mend, "%s", e.text);
    return MISSING;
}

/* `wsm doctor` reads the names in parentheses. */
static enum verdict check_backend(struct config *c, struct finding *f)
{
    struct backend found;
    struct err e = {0};
    char names[128];
    size_t n = 0;

    for (const char *const *name = backend_names(); *name && n < sizeof(names); name++)
        n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%s", n ? ", " : "", *name);
    say(f->found, "%s (there are %s)", c->backend ? c->backend : "none was named", names);
    if (!c->backend || backend_find(c->backend, &found, &e) == 0)
        return OK;
    say(f->mend, "%s", e.text);
    return MISSING;
}

/* What there is of the base directory is on the file system that will hold the workspaces. */
static int open_existing(const char *path)
{
    cleanup_free char *part = existing_part(path);

    return part ? open(part, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
}

/* Where no backend was named, whether the local one would do. */
static enum verdict check_confinement(struct config *c, struct finding *f)
{
    cleanup_free char *state = c->state_dir ? strdup(c->state_dir) : config_default_dir();
    cleanup_close int base = open_existing(c->basedir);
    const struct backend_mount mount = {
        .source = c->source ? c->source : "",
        .basedir = c->basedir,
        .basedir_fd = base,
        .instance = "check",
        .state_dir = state,
        .pairs = c->backend ? c->pairs : NULL,
        .grace_ms = c->grace_s * 1000,
        .read_only = c->read_only,
        .mountpoint = c->mountpoint ? c->mountpoint : "",
        .confine = c->confine,
    };
    struct backend b;
    struct err e = {0};

    if (backend_find(c->backend ? c->backend : "local", &b, &e) < 0 || !b.check) {
        say(f->found, "the backend does not say");
        return OK;
    }
    if (b.check(&mount, f->found, sizeof(f->found), &e) == 0)
        return OK;
    f->only_jobs = f->found[0];
    if (!f->only_jobs)
        say(f->found, "the mount would be refused");
    say(f->mend, "%s", e.text);
    return MISSING;
}

/* ── all of them ─────────────────────────────────────────────────────────────────────────── */

static const struct {
    const char   *what;
    enum verdict (*check)(struct config *c, struct finding *f);
} checks[] = {
    {"kernel", check_kernel},
    {"/proc", check_proc},
    {"/dev/fuse", check_device},
    {"libfuse", check_libfuse},
    {"who mounts", check_fusermount},
    {"allow_other", check_allow_other},
    {"passthrough", check_passthrough},
    {"backend", check_backend},
    {"base directory", check_basedir},
    {"state directory", check_state_dir},
    {"mount point", check_mountpoint},
    {"confinement", check_confinement},
};

int check_run(struct config *c)
{
    static const char *const words[] = {[OK] = "ok", [NOTE] = "note", [MISSING] = "missing"};
    bool mounts = true, runs = true;

    for (size_t i = 0; i < array_size(checks); i++) {
        struct finding f = {0};
        enum verdict v = checks[i].check(c, &f);
        printf("%-8s %-16s %s\n", words[v], checks[i].what, f.found);
        if (v != OK && f.mend[0])
            printf("         %-16s %s\n", "", f.mend);
        if (v == MISSING && f.only_jobs)
            runs = false;
        else if (v == MISSING)
            mounts = false;
    }
    puts(!mounts ? "A mount would not work here yet."
         : runs  ? "A mount would work here."
                 : "A mount would work here, but no job would run in it.");
    return !mounts || !runs;
}
