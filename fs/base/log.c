// SPDX-License-Identifier: Apache-2.0
#include "fs/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <syslog.h>
#include <unistd.h>

#include "fs/base/cleanup.h"

#define JOURNAL_SOCKET "/run/systemd/journal/socket"
#define TEXT_MAX 2048

static const struct {
    const char *name;
    int         priority; /* syslog(3)'s, the journal's too */
} levels[] = {
    [LOG_LEVEL_ERROR] = {"error", LOG_ERR},
    [LOG_LEVEL_WARNING] = {"warning", LOG_WARNING},
    [LOG_LEVEL_INFO] = {"info", LOG_INFO},
    [LOG_LEVEL_DEBUG] = {"debug", LOG_DEBUG},
};

static _Atomic int current_level = LOG_LEVEL_INFO;
static _Atomic int current_form = LOG_FORM_STDERR;
static _Atomic int journal_fd = -1;

void log_set_level(enum log_level level) { atomic_store(&current_level, (int)level); }
enum log_level log_get_level(void) { return (enum log_level)atomic_load(&current_level); }
const char *log_level_name(enum log_level level) { return levels[level].name; }

int log_level_parse(const char *word)
{
    for (size_t i = 0; i < array_size(levels); i++)
        if (strcmp(word, levels[i].name) == 0)
            return (int)i;
    return -EINVAL;
}

/* ── where lines go ──────────────────────────────────────────────────────────────────────── */

static int journal_connect(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX, .sun_path = JOURNAL_SOCKET};
    cleanup_close int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
        return -1;
    return steal_fd(&fd);
}

/* Does stderr lead to the journal anyway? The variable says "DEVICE:INODE". */
static bool stderr_is_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long dev, ino;
    struct stat st;

    return stream && sscanf(stream, "%llu:%llu", &dev, &ino) == 2 && fstat(STDERR_FILENO, &st) == 0 &&
           st.st_dev == dev && st.st_ino == ino;
}

void log_open(enum log_target target)
{
    int fd = -1;

    if (target == LOG_TARGET_SYSTEM || stderr_is_journal())
        fd = journal_connect();
    atomic_store(&journal_fd, fd);
    if (fd >= 0) {
        atomic_store(&current_form, LOG_FORM_JOURNAL);
    } else if (target == LOG_TARGET_SYSTEM) {
        openlog("wsmfs", LOG_PID, LOG_DAEMON);
        atomic_store(&current_form, LOG_FORM_SYSLOG);
    } else {
        atomic_store(&current_form, LOG_FORM_STDERR);
    }
}

/* The journal may have been restarted: its socket is then another one under the same name. */
static bool journal_send(const char *line, size_t len)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX, .sun_path = JOURNAL_SOCKET};
    int fd = atomic_load(&journal_fd);

    return send(fd, line, len, MSG_NOSIGNAL) == (ssize_t)len ||
           (connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0 &&
            send(fd, line, len, MSG_NOSIGNAL) == (ssize_t)len);
}

static void emit(enum log_form form, enum log_level level, const struct log_fields *f, const char *text)
{
    char line[LOG_LINE_MAX];
    size_t len = log_format(line, sizeof(line), form, level, f, text);

    if (form == LOG_FORM_SYSLOG)
        syslog(levels[level].priority, "%s", line);
    else if (form == LOG_FORM_STDERR)
        (void)!write(STDERR_FILENO, line, len);
    else if (!journal_send(line, len))
        emit(LOG_FORM_STDERR, level, f, text);
}

void log_event(enum log_level level, const struct log_fields *f, const char *fmt, ...)
{
    int saved = errno;
    char text[TEXT_MAX];
    va_list ap;

    if ((int)level > atomic_load(&current_level))
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    emit((enum log_form)atomic_load(&current_form), level, f, text);
    errno = saved;
}
