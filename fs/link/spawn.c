// SPDX-License-Identifier: Apache-2.0
/* link_job_spawn(): from strings to a request. And the other things that a job is asked for. */
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "backends/guest/wire.h"
#include "fs/link/internal.h"

/* Lays texts one behind the other. */
static int flatten(const char *const *texts, struct proto_list *out, char **mem)
{
    size_t size = 0, at = 0;
    uint32_t n = 0;

    *mem = NULL;
    *out = (struct proto_list){ 0 };
    for (; texts && texts[n]; n++)
        size += strlen(texts[n]) + 1;
    if (size > PROTO_LIST_MAX_BYTES || n > PROTO_LIST_MAX_COUNT)
        return -EINVAL;
    if (size == 0)
        return 0;
    *mem = malloc(size);
    if (!*mem)
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        size_t len = strlen(texts[i]) + 1;

        memcpy(*mem + at, texts[i], len);
        at += len;
    }
    *out = (struct proto_list){ *mem, n, (uint32_t)size };
    return 0;
}

static const struct {
    size_t   at; /* of a bool in struct link_spawn */
    uint32_t flag;
} flags[] = {
    { offsetof(struct link_spawn, env_guest), PROTO_SPAWN_ENV_GUEST },
    { offsetof(struct link_spawn, ids), PROTO_SPAWN_IDS },
    { offsetof(struct link_spawn, no_new_privs), PROTO_SPAWN_NO_NEW_PRIVS },
    { offsetof(struct link_spawn, drop_caps), PROTO_SPAWN_DROP_CAPS },
    { offsetof(struct link_spawn, stdin_pipe), PROTO_SPAWN_STDIN },
    { offsetof(struct link_spawn, tty), PROTO_SPAWN_TTY },
};

static uint32_t flags_of(const struct link_spawn *s)
{
    uint32_t f = s->script ? PROTO_SPAWN_SHELL : 0;

    for (size_t i = 0; i < array_size(flags); i++)
        if (*(const bool *)((const char *)s + flags[i].at))
            f |= flags[i].flag;
    return f;
}

static int check(const struct link_spawn *s, struct err *e)
{
    if (!s->script == !s->argv || (s->argv && !s->argv[0]))
        return err_set(e, -EINVAL, "a job has either a script or a list of arguments");
    if (s->script && strlen(s->script) > PROTO_SCRIPT_MAX_BYTES)
        return err_set(e, -EINVAL, "the script is longer than 1 MiB");
    if (s->n_groups > PROTO_GROUPS_MAX_COUNT)
        return err_set(e, -EINVAL, "more than 256 groups");
    return 0;
}

/* Group numbers as they go over the wire. */
static void put_groups(const struct link_spawn *s, uint8_t *to)
{
    for (size_t i = 0; i < s->n_groups; i++)
        wire_put32(to + 4 * i, s->groups[i]);
}

static struct request *encode(const struct link_spawn *s, const struct proto_list *argv,
                              const struct proto_list *env)
{
    uint8_t groups[4 * PROTO_GROUPS_MAX_COUNT];
    struct proto_spawn m = {
        .flags = flags_of(s), .uid = s->uid, .gid = s->gid, .timeout_ms = s->timeout_ms, .grace_ms = s->grace_ms,
        .cols = s->cols, .rows = s->rows, .groups = { groups, (uint32_t)s->n_groups },
        .label = proto_str_of(s->label), .cwd = proto_str_of(s->cwd), .user = proto_str_of(s->user),
        .argv = *argv, .env = *env,
    };

    memcpy(m.key.b, s->key.b, sizeof(m.key.b));
    put_groups(s, groups);
    return request_new(PROTO_SPAWN, &m);
}

static int make_request(const struct link_spawn *s, struct request **out, struct err *e)
{
    const char *const script[] = { s->script, NULL };
    cleanup_free char *argv_mem = NULL, *env_mem = NULL;
    struct proto_list argv, env;
    int r = check(s, e);

    if (r != 0)
        return r;
    r = flatten(s->script ? script : s->argv, &argv, &argv_mem);
    if (r == 0)
        r = flatten(s->env, &env, &env_mem);
    if (r != 0)
        return err_set(e, r, r == -ENOMEM ? "out of memory" : "the command or its environment is too large");
    *out = encode(s, &argv, &env);
    return *out ? 0 : err_set(e, -EINVAL, "the command, its directory, user, label or times are beyond a limit");
}

int link_job_spawn(struct link *l, const struct link_spawn *s, const struct link_job_ops *ops, void *arg,
                   struct link_job **out, struct err *e)
{
    struct request *spawn = NULL;
    struct link_job *j;
    int r = make_request(s, &spawn, e);

    if (r != 0)
        return r;
    j = link_job_new(l, &s->key, ops, arg);
    if (!j) {
        free(spawn);
        return err_set(e, -ENOMEM, "out of memory");
    }
    stdin_init(j, s->stdin_pipe || s->tty, true);
    for (int i = 0; i < LINK_STREAMS; i++)
        j->streams[i].received = j->streams[i].acked = j->streams[i].want = s->from[i];
    if (s->instance) {
        j->has_instance = true;
        j->instance = *s->instance;
    }
    j->spawn = spawn;
    *out = j;
    link_loop_call(l->loop, &j->start_call);
    return 0;
}

/* ── requests of a job ── */

static int ask(struct link_job *j, uint16_t type, const void *msg, link_done_fn *done, void *arg)
{
    struct request *r = request_new(type, msg);

    if (r) {
        r->job = j;
        r->answered = request_plain_answered;
        r->done = done;
        r->arg = arg;
    }
    return request_post(j->link, r);
}

int link_job_signal(struct link_job *j, int signo, enum link_scope scope, link_done_fn *done, void *arg)
{
    struct proto_signal m = { j->key, (uint32_t)signo, (uint8_t)scope };

    if (signo < 1 || signo > 64)
        return -EINVAL;
    return ask(j, PROTO_SIGNAL, &m, done, arg);
}

int link_job_kill(struct link_job *j, uint32_t grace_ms, link_done_fn *done, void *arg)
{
    struct proto_kill m = { j->key, grace_ms };

    return ask(j, PROTO_KILL, &m, done, arg);
}

int link_job_resize(struct link_job *j, uint16_t cols, uint16_t rows, link_done_fn *done, void *arg)
{
    struct proto_resize m = { j->key, cols, rows };

    return ask(j, PROTO_RESIZE, &m, done, arg);
}
