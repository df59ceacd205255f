// SPDX-License-Identifier: Apache-2.0
/* What a failed start says. bubblewrap always ends with 1; only its words tell what was refused. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backends/local/sandbox_internal.h"
#include "fs/base/cleanup.h"

#define ALLOW_NAMESPACES \
    "the kernel or the container forbids user namespaces: allow them (sysctl user.max_user_namespaces above 0, " \
    "kernel.unprivileged_userns_clone=1 where it exists; in Docker --security-opt seccomp=unconfined, or " \
    "--privileged)"
#define ALLOW_APPARMOR \
    "AppArmor restricts user namespaces (Ubuntu 24.04 does): give /usr/bin/bwrap a profile with \"userns,\" in " \
    "/etc/apparmor.d, or sysctl kernel.apparmor_restrict_unprivileged_userns=0"
#define RAISE_PROCESSES \
    "a limit on processes is reached: raise pids of [sandbox], or end processes of that user"
#define UNMASK_PROC \
    "/proc is masked, as in a container: start it with --security-opt systempaths=unconfined, or --privileged"

/* The first one whose words occur holds. */
static const struct {
    const char *words;
    const char *remedy;
} remedies[] = {
    {"Resource temporarily unavailable", RAISE_PROCESSES},
    {"No permissions to create", ALLOW_NAMESPACES},
    {"Creating new namespace failed", ALLOW_NAMESPACES},
    {"setting up uid map", ALLOW_APPARMOR},
    {"Failed RTM_NEWADDR", ALLOW_APPARMOR},
    {"Failed to make / slave", ALLOW_APPARMOR},
    {"Can't mount proc", UNMASK_PROC},
    {"pivot_root", "the root file system is one that cannot be left (a ramfs): start the daemon from another one"},
    {"Failed to mount tmpfs", "there is no directory /tmp: make it"},
    {"Can't find source path", "that path is not there, or not for the user whose jobs these are"},
    {"Unknown option", "bubblewrap is too old: 0.8.0 or newer is needed"},
    {"wsm-guest", "the guest program does not run here: install the one for this machine's processor"},
};

static const char *remedy_for(const char *text)
{
    for (size_t i = 0; i < array_size(remedies); i++)
        if (strstr(text, remedies[i].words))
            return remedies[i].remedy;
    return NULL;
}

/* The first line that bubblewrap wrote, without its name. */
static void read_words(int fd, char *text, size_t size)
{
    ssize_t n = pread(fd, text, size - 1, 0);

    text[n > 0 ? n : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
    if (strncmp(text, "bwrap: ", 7) == 0)
        memmove(text, text + 7, strlen(text + 7) + 1);
}

int sandbox_say_refused(int error_fd, struct err *e)
{
    char text[160];

    read_words(error_fd, text, sizeof(text));
    const char *remedy = remedy_for(text);
    if (text[0] == '\0')
        return err_set(e, -EIO, "the sandbox ended before its guest program ran, without a word");
    if (!remedy)
        return err_set(e, -EIO, "bubblewrap cannot make the sandbox: %s", text);
    return err_set(e, -EPERM, "bubblewrap cannot make the sandbox: %s; %s", text, remedy);
}

/* By enum sandbox_step. */
static const char *const steps[] = {
    [SANDBOX_STEP_OK] = "nothing failed",
    [SANDBOX_STEP_FORK] = "no process can be made for the sandbox",
    [SANDBOX_STEP_JOIN] = "the sandbox cannot be put into its control group",
    [SANDBOX_STEP_NAMESPACE] = "no mount namespace can be made, which root's sandboxes need (CAP_SYS_ADMIN)",
    [SANDBOX_STEP_STAGE] = "nothing can be mounted in the sandbox's private mount namespace",
    [SANDBOX_STEP_ATTACH] = "the workspace cannot be mounted in the sandbox's private mount namespace",
    [SANDBOX_STEP_DROP] = "the rights of root cannot be given up for the tenant's",
    [SANDBOX_STEP_FDS] = "the sandbox's descriptors cannot be set up",
    [SANDBOX_STEP_CHDIR] = "the workspace's directory cannot be entered",
    [SANDBOX_STEP_EXEC] = "the program cannot be started",
};

int sandbox_say_step(const struct sandbox_failure *f, const struct sandbox_plan *p, struct err *e)
{
    bool known = f->step > 0 && (size_t)f->step < array_size(steps);

    if (f->step == SANDBOX_STEP_EXEC)
        return err_sys(e, -f->error, "%s cannot be started", p->exec_path ? p->exec_path : p->argv[0]);
    return err_sys(e, -f->error, "%s", known ? steps[f->step] : "the sandbox cannot be started");
}
