// SPDX-License-Identifier: Apache-2.0
#include "backends/docker/docker.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "backends/shared/files.h"
#include "fs/base/cleanup.h"
#include "fs/base/log.h"
#include "fs/base/timers.h"

#define ROUNDS      20       /* of finding, making and starting, while others do the same */
#define BRING_UP_TRIES 3
#define GUEST_NS    30000000000ll /* for the guest of a container that was just started to listen and greet */
#define FOUND_NS    20000000000ll /* … and of one that was found running: it may be somebody else who has just started it */
#define GOING_NS    120000000000ll /* for a container to go that somebody removes */
#define DEAF_NS     3000000000ll  /* for the engine to notice the end of a container whose guest does not listen any more */
#define QUICK_NS    200000000ll   /* for a guest that is well to greet */
#define GREET_NS      2000000000ll /* for one that listens to greet, before its container is looked at */
#define GREET_LOOK_MS 100
#define NO_ANSWER   "the guest in the container does not answer"
#define NAP_FIRST_NS 2000000
#define NAP_MOST_NS  50000000

/* ── begin and end ───────────────────────────────────────────────────────────────────────── */

static void docker_finish(void *state)
{
    struct docker *d = state;

    docker_watch_stop(d);
    engine_destroy(d->engine);
    flights_destroy(d->flights);
    docker_keys_finish(&d->keys);
    free(d->guest);
    free(d);
}

int docker_settle(struct docker *d, struct err *e)
{
    struct engine_address at;
    int r = docker_keys_read(d->mount.source, d->mount.pairs, &d->keys, e);

    if (r == 0)
        r = docker_mounts_check(d, e);
    if (r == 0)
        r = engine_find(d->keys.host, &at, e);
    if (r == 0)
        r = engine_create(&at, &d->engine, e);
    if (r == 0 && strncmp(engine_name(d->engine), "unix://", 7) != 0)
        r = err_set(e, -EINVAL, "the Docker engine at %s may be on another machine, where this host's directories are not: "
                    "only a local one, on a unix socket, can be used", engine_name(d->engine));
    return r;
}

static int begin(struct docker *d, struct err *e)
{
    int r = docker_settle(d, e);

    if (r == 0)
        r = flights_create(&d->flights, e);
    return r == 0 ? docker_place_guest(d, e) : r;
}

static int docker_init(const struct backend_mount *m, void **state, struct err *e)
{
    struct docker *d = calloc(1, sizeof(*d));
    int r;

    if (!d)
        return err_set(e, -ENOMEM, "out of memory");
    d->mount = *m;
    r = begin(d, e);
    if (r < 0)
        docker_finish(d);
    else
        *state = d;
    return r;
}

/* ── provisioning ────────────────────────────────────────────────────────────────────────── */

static bool is_cancelled(struct backend_progress *p) { return p && p->cancelled(p); }

static void tell(struct backend_progress *p, const char *step, const char *text)
{
    if (p)
        p->step(p, step, text, 0, 0);
}

static int foreign(const struct backend_workspace *w, const struct container *c, struct err *e)
{
    return err_set(e, -EIO, "the container %s (%.12s) is not this mount's: its labels name another instance or "
                   "workspace. It is left alone; remove or rename it", w->sandbox, c->id);
}

/* One way to a running container. */
struct effort {
    struct backend_progress *progress; /* or NULL */
    const char *image;                 /* what to make it of; NULL: not known yet */
    char built[IMAGE_BUILT_SIZE];      /* where that may lie */
    bool fetched;
    bool made;                         /* none was there, and we have asked for one, whatever came of that */
    bool started;                      /* it was not running before */
    char id[CONTAINER_ID_SIZE];        /* the container that runs */
};

/* What we have done to an earlier one says nothing of this one, which is another mount's. */
static void turn_to(struct effort *f, const struct container *c)
{
    if (strcmp(f->id, c->id) != 0)
        f->made = f->started = false;
    memcpy(f->id, c->id, sizeof(f->id));
}

/* -EAGAIN: it is there now, or was to be built of what has changed since. */
static int fetch(struct docker *d, struct effort *f, struct err *e)
{
    int r = image_fetch(d, f->image, f->progress, e);

    f->fetched = r == 0;
    if (r == -EAGAIN)
        f->image = NULL;
    return r == 0 ? -EAGAIN : r;
}

/* Makes one and says so in *c. -ENODATA: its image is to be fetched first. */
static int make(struct docker *d, const struct backend_workspace *w, struct effort *f, struct container *c,
                struct err *e)
{
    struct backend_progress *p = f->progress;
    struct err why = { 0 };
    int r = docker_place_run(d, w, e);

    if (r < 0)
        return r;
    if (d->keys.pull == DOCKER_PULL_ALWAYS && !d->keys.build && !f->fetched)
        return -ENODATA;
    tell(p, "create", f->image);
    f->made = true;
    r = container_create(d, w, f->image, p, c->id, &why);
    if (r == -ENOENT || r == -EEXIST) /* so surely nothing came of it */
        f->made = false;
    if (r == -ENOENT && d->keys.pull != DOCKER_PULL_NEVER && !f->fetched)
        return -ENODATA;
    if (r == -EEXIST)
        return -EAGAIN;
    if (r < 0)
        return err_set(e, r == -ENOENT ? -ENXIO : r, "%s", why.text);
    c->state = CONTAINER_CREATED;
    c->ours = true;
    memcpy(f->id, c->id, sizeof(f->id));
    return 0;
}

static void nap(int64_t ns)
{
    struct timespec t = { .tv_nsec = ns };

    nanosleep(&t, NULL);
}

/* What failed with a container that somebody is removing, or starting, at this moment says nothing: -EAGAIN. */
static int unless_moved(struct docker *d, const struct backend_workspace *w, const struct container *c,
                        struct backend_progress *p, int r, const struct err *why, struct err *e)
{
    struct container now;

    if (container_look(d, w, p, &now, NULL) == 0 && (now.state != c->state || strcmp(now.id, c->id) != 0))
        return -EAGAIN;
    return err_set(e, r, "%s", why->text);
}

static int check_seen(struct docker *d, const struct backend_workspace *w, const struct container *c,
                      struct backend_progress *p, struct err *e)
{
    struct err why = { 0 };
    int r = docker_check_seen(d, w, c->id, p, &why);

    return r == 0 ? 0 : unless_moved(d, w, c, p, r, &why, e);
}

static bool is_to_be_started(const struct container *c)
{
    return c->state == CONTAINER_ABSENT || (c->ours && (c->state == CONTAINER_CREATED || c->state == CONTAINER_EXITED));
}

/* Starts one of ours that does not run, and lies still as long as we have the turn. As step(). */
static int start(struct docker *d, const struct backend_workspace *w, struct effort *f, const struct container *c,
                 struct err *e)
{
    struct err why = { 0 };
    int r = docker_remove_run(d, w, e); /* what an earlier run has left there, which may be anything */

    if (r == 0)
        r = docker_place_run(d, w, e);
    if (r == 0 && (r = check_seen(d, w, c, f->progress, e)) < 0 && r != -EAGAIN)
        container_end(d, c->id, 0, NULL);
    if (r < 0)
        return r;
    tell(f->progress, "start", f->image);
    f->started = true;
    r = container_start(d, c->id, f->progress, &why);
    if (r == -ENOENT)
        return -EAGAIN; /* somebody has removed it */
    return r < 0 ? unless_moved(d, w, c, f->progress, r, &why, e) : 0;
}

/* Makes and starts one, unless another mount has done it by the time that it is our turn. Two at once would each
 * take away the directory in which the other's guest is about to listen. As step(). -ENODATA: as make(). */
static int renew(struct docker *d, const struct backend_workspace *w, struct effort *f, struct err *e)
{
    cleanup_close int turn = docker_take_turn(d, w, f->progress, e);
    struct container c;
    char spec[24];
    int r = turn < 0 ? turn : container_look(d, w, f->progress, &c, e);

    if (r < 0)
        return r;
    if (!is_to_be_started(&c))
        return -EAGAIN;
    turn_to(f, &c);
    if (c.state == CONTAINER_ABSENT) {
        r = make(d, w, f, &c, e);
        return r < 0 ? r : start(d, w, f, &c, e);
    }
    container_spec(d, w, f->image, spec);
    if (strcmp(spec, c.spec) == 0)
        return start(d, w, f, &c, e);
    r = container_end(d, c.id, 0, e); /* it was made from other settings */
    return r < 0 ? r : -EAGAIN;
}

/* One step towards a running container. 0: it runs; -EAGAIN: look again; -EBUSY: in a moment. */
static int step(struct docker *d, const struct backend_workspace *w, struct effort *f, struct err *e)
{
    struct container c;
    int r = container_look(d, w, f->progress, &c, e);

    if (r < 0)
        return r;
    turn_to(f, &c);
    if (c.state != CONTAINER_ABSENT && !c.ours)
        return foreign(w, &c, e);
    if (c.state == CONTAINER_RUNNING)
        return 0;
    if (c.state == CONTAINER_GOING)
        return -EBUSY;
    if (c.state == CONTAINER_PAUSED) {
        tell(f->progress, "unpause", "");
        return container_unpause(d, c.id, f->progress, e);
    }
    r = f->image ? 0 : image_name(d, f->progress, f->built, &f->image, e);
    if (r == 0)
        r = renew(d, w, f, e);
    return r == -ENODATA ? fetch(d, f, e) : r;
}

/* A removal that is under way may take long, and has a name that we want. */
static int run_container(struct docker *d, const struct backend_workspace *w, struct effort *f, struct err *e)
{
    int64_t end_ns = clock_ns() + GOING_NS;
    struct err why = { 0 };
    int r = docker_learn_ids(d, e);

    if (r < 0)
        return r;
    docker_shift_files(d, w);
    r = -EAGAIN;
    for (int round = 0; (r == -EAGAIN && round < ROUNDS) || (r == -EBUSY && clock_ns() < end_ns); round += r == -EAGAIN) {
        if (is_cancelled(f->progress))
            return err_set(e, -ECANCELED, "cancelled");
        if (r == -EBUSY)
            nap(NAP_MOST_NS);
        err_clear(&why);
        r = step(d, w, f, &why);
    }
    if (r == -EBUSY)
        return err_set(e, -EIO, "the container %s is being removed, and that does not end", w->sandbox);
    if (r == -EAGAIN && !*why.text)
        return err_set(e, -EIO, "the container %s does not come to rest: somebody else makes and removes it", w->sandbox);
    return r == 0 ? 0 : err_set(e, r == -EAGAIN ? -EIO : r, "%s", why.text);
}

/* Why no guest listens: its container may have ended at once. -ESTALE: one that ran before has. */
static int guest_missing(struct docker *d, const struct backend_workspace *w, const struct effort *f, struct err *e)
{
    struct container c;
    int r = container_look(d, w, f->progress, &c, e);

    if (r < 0)
        return r;
    if (c.state == CONTAINER_PAUSED && c.ours) {
        tell(f->progress, "unpause", "");
        r = container_unpause(d, c.id, f->progress, e);
        return r == 0 ? -EAGAIN : r;
    }
    if (c.state == CONTAINER_RUNNING && !*c.spec) /* made by hand: there is nothing of ours to be seen in it */
        return -EAGAIN;
    if (c.state == CONTAINER_RUNNING) { /* perhaps it listens, where the engine sees another directory */
        r = check_seen(d, w, &c, f->progress, e);
        return r == 0 ? -EAGAIN : r;
    }
    if (!f->started)
        return -ESTALE;
    return err_set(e, -EIO, "the guest does not run in the container: %s", *c.trouble ? c.trouble : "it is gone");
}

/* Whether the guest behind a new connection greets: one that hangs takes connections all the same. */
static bool greets(int fd, int64_t end_ns, struct backend_progress *p)
{
    struct pollfd f = { .fd = fd, .events = POLLIN };
    char byte;

    while (clock_ns() < end_ns && !is_cancelled(p))
        if (poll(&f, 1, GREET_LOOK_MS) > 0)
            return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
    return false;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* A connection over which the guest greets, as soon as there is one. Without a sentence: -EOWNERDEAD, no
 * guest answers in a container that runs; -ESTALE, see above. */
static int wait_for_guest(struct docker *d, const struct backend_workspace *w, const struct effort *f, struct err *e)
{
    struct backend_progress *p = f->progress;
    int64_t end_ns = clock_ns() + (f->started ? GUEST_NS : FOUND_NS), pause_ns = NAP_FIRST_NS;
    struct err why;
    int r = -EAGAIN;

    tell(p, "guest", "");
    while (clock_ns() < end_ns && !is_cancelled(p)) {
        int fd = docker_connect(d, w, &why);
        if (fd >= 0 && greets(fd, least(end_ns, clock_ns() + GREET_NS), p))
            return fd;
        if (fd >= 0)
            close(fd);
        if ((fd >= 0 || pause_ns == NAP_MOST_NS) && (r = guest_missing(d, w, f, e)) != -EAGAIN)
            return r;
        nap(pause_ns);
        pause_ns = pause_ns * 2 < NAP_MOST_NS ? pause_ns * 2 : NAP_MOST_NS;
    }
    return is_cancelled(p) ? err_set(e, -ECANCELED, "cancelled") : -EOWNERDEAD;
}

static int replace(struct docker *d, const struct backend_workspace *w, struct effort *f, struct err *e)
{
    tell(f->progress, "replace", "its guest does not answer");
    log_info("the guest in the container %s (%.12s) does not answer: it is made anew", w->sandbox, f->id);
    return container_end(d, f->id, 0, e);
}

/* A container that was there may have been about to go, by somebody else's hand. One that was found running and in
 * which no guest answers is of no use to anybody: its guest hangs, or something else runs there. It is made anew;
 * but not for ever. */
static int bring_up(struct docker *d, const struct backend_workspace *w, struct effort *f, struct err *e)
{
    int r = docker_place_run(d, w, e);

    for (int tries = 0; r == 0; tries++) {
        r = run_container(d, w, f, e);
        if (r == 0)
            r = wait_for_guest(d, w, f, e);
        if ((r != -EOWNERDEAD && r != -ESTALE) || f->started || tries == BRING_UP_TRIES)
            break;
        r = r == -EOWNERDEAD ? replace(d, w, f, e) : 0;
    }
    return r == -EOWNERDEAD || r == -ESTALE ? err_set(e, -EIO, NO_ANSWER) : r;
}

/* Ends the container, and what lies here for it. `id`: that one alone, "" or NULL: whichever is there. */
static int release(struct docker *d, const struct backend_workspace *w, const char *id, int64_t grace_ms, struct err *e)
{
    cleanup_close int turn = docker_take_turn(d, w, NULL, e);
    struct container c;
    int r = turn < 0 ? turn : container_look(d, w, NULL, &c, e);

    if (r < 0)
        return r;
    if (c.state != CONTAINER_ABSENT && id && *id && strcmp(c.id, id) != 0)
        return 0; /* another mount has made one since */
    if (c.state != CONTAINER_ABSENT && c.ours)
        r = container_end(d, c.id, grace_ms, e);
    if (r == 0)
        r = container_end_renamed(d, w, grace_ms, e);
    return r == 0 ? docker_remove_run(d, w, e) : r;
}

static int docker_close(void *state, const struct backend_workspace *w, struct err *e)
{
    struct docker *d = state;

    return release(d, w, NULL, d->mount.grace_ms, e);
}

/* One that fails releases what it has made, and leaves what ran before: jobs may run in it. */
static int docker_provision(void *state, const struct backend_workspace *w, struct backend_progress *p, struct err *e)
{
    struct effort f = { .progress = p };
    int fd = bring_up(state, w, &f, e);

    if (fd >= 0) {
        close(fd);
        return 0;
    }
    if (f.made || f.started) /* no job runs there yet */
        release(state, w, f.id, 0, NULL);
    return fd;
}

/* ── what has become of it ───────────────────────────────────────────────────────────────── */

static int gone(const struct container *c, struct err *e)
{
    return err_set(e, -ENXIO, "the container is gone: %s", *c->trouble ? c->trouble : "it was removed");
}

static int others(const struct container *c, struct err *e)
{
    return err_set(e, -ENXIO, "the container is gone: another one (%.12s) has its name", c->id);
}

/* By the engine; `silent` is what connecting to the guest said. A removal that is under way has killed it before. */
static int look_at_container(struct docker *d, const struct backend_workspace *w, int silent, struct err *e)
{
    struct err why = { 0 };
    struct container c;
    int r = container_look(d, w, NULL, &c, &why);

    if (r < 0 && silent == -ECONNREFUSED) /* whoever listened there has ended */
        return err_set(e, -ENXIO, "the container has ended: %s", why.text);
    if (r < 0)
        return err_set(e, r == -ENXIO || r == -EHOSTDOWN ? -EIO : r, "%s", why.text);
    if (c.state != CONTAINER_ABSENT && !c.ours)
        return others(&c, e);
    if (c.state == CONTAINER_PAUSED)
        return err_set(e, -EHOSTDOWN, "the container was paused");
    return c.state == CONTAINER_RUNNING ? 0 : gone(&c, e);
}

/* Where the guest greets no engine need be asked, which may be away while its containers go on. */
static int docker_look(void *state, const struct backend_workspace *w, struct err *e)
{
    struct docker *d = state;
    struct err silence;
    cleanup_close int fd = docker_connect(d, w, &silence);

    return fd >= 0 && greets(fd, clock_ns() + QUICK_NS, NULL) ? 0 : look_at_container(d, w, fd, e);
}

/* ── the stream ──────────────────────────────────────────────────────────────────────────── */

/* A container may be paused behind our back, and its socket would take a connection all the same. */
static int look_and_wake(struct docker *d, const struct backend_workspace *w, struct container *c, struct err *e)
{
    int r = container_look(d, w, NULL, c, e);

    return r == 0 && c->ours && c->state == CONTAINER_PAUSED ? container_unpause(d, c->id, NULL, e) : r;
}

/* The container ran and nobody listened: for a moment the engine may not know yet that it has ended. */
static int find_deaf(struct docker *d, const struct backend_workspace *w, struct err *e)
{
    struct err why = { 0 };
    struct container c;
    int fd, r;

    for (int64_t end_ns = clock_ns() + DEAF_NS; clock_ns() < end_ns; nap(NAP_MOST_NS)) {
        r = look_and_wake(d, w, &c, e);
        if (r < 0)
            return r;
        if (c.state != CONTAINER_RUNNING && c.state != CONTAINER_PAUSED)
            return gone(&c, e);
        fd = docker_connect(d, w, &why);
        if (fd >= 0)
            return fd;
    }
    return err_set(e, -ENXIO, "the container is of no use any more: no guest listens in it");
}

/* To a guest that was there before. */
static int reconnect(struct docker *d, const struct backend_workspace *w, struct err *e)
{
    struct err why = { 0 }, silence = { 0 };
    struct container c;
    int r = look_and_wake(d, w, &c, &why), fd;

    /* Without an engine a guest may be there all the same. */
    fd = r < 0 || c.state != CONTAINER_ABSENT ? docker_connect(d, w, &silence) : -ENOENT;
    if (fd >= 0)
        return fd;
    if (r < 0 && fd == -ECONNREFUSED) /* whoever listened there has ended */
        return err_set(e, -ENXIO, "the container has ended: %s", why.text);
    if (r < 0)
        return err_set(e, r == -ENXIO ? -EIO : r, "%s", why.text);
    if (c.state != CONTAINER_ABSENT && !c.ours)
        return others(&c, e);
    return c.state == CONTAINER_RUNNING || c.state == CONTAINER_PAUSED ? find_deaf(d, w, e) : gone(&c, e);
}

static int docker_stream(void *state, const struct backend_workspace *w, bool start, struct err *e)
{
    struct docker *d = state;
    struct effort f = { 0 };
    struct err why;
    int fd;

    if (!start)
        return reconnect(d, w, e);
    /* No engine is needed where a guest answers; if one is late it may be paused, or the wrong one. */
    fd = docker_connect(d, w, &why);
    if (fd >= 0 && greets(fd, clock_ns() + QUICK_NS, NULL))
        return fd;
    if (fd >= 0)
        close(fd);
    return bring_up(d, w, &f, e);
}

/* ── the rest ────────────────────────────────────────────────────────────────────────────── */

static int docker_files_open(void *state, const struct backend_workspace *w, struct err *e)
{
    struct docker *d = state;
    uint32_t uid, gid;

    docker_keys_ids(&d->keys, &uid, &gid);
    return host_files_open_for(d->mount.basedir_fd, w, uid + atomic_load(&d->shift_uid),
                               gid + atomic_load(&d->shift_gid), d->mount.read_only, e);
}

static int docker_destroy(void *state, const struct backend_workspace *w, struct backend_progress *p, struct err *e)
{
    return host_files_remove(((struct docker *)state)->mount.basedir_fd, w->host_dir, p, e);
}

static int docker_list(void *state, void (*found)(const struct backend_found *f, void *arg), void *arg, struct err *e)
{
    struct docker *d = state;
    int r = docker_watch_start(d);

    if (r < 0)
        log_warning("the engine's events are not followed: %s", strerror(-r));
    r = container_list(d, found, arg, e);
    if (r == 0 && !d->mount.read_only)
        r = host_files_empty_trash(d->mount.basedir_fd, e);
    return r;
}

static void docker_job_root(void *state, const struct backend_workspace *w, char *out, size_t size)
{
    (void)state;
    (void)w;
    snprintf(out, size, DOCKER_WORKSPACE);
}

static const struct backend docker_backend = {
    .abi = BACKEND_ABI,
    .size_bytes = sizeof(struct backend),
    .name = "docker",
    .files_wait = false,
    .init = docker_init,
    .finish = docker_finish,
    .provision = docker_provision,
    .files_open = docker_files_open,
    .close = docker_close,
    .destroy = docker_destroy,
    .list = docker_list,
    .stream = docker_stream,
    .job_root = docker_job_root,
    .root_look = docker_root_look,
    .root_children = docker_root_children,
    .root_open = docker_root_open,
    .check = docker_check,
    .foreign_ids = true,
    .look = docker_look,
};

/* backend.h: what a shared object exports. */
const struct backend *wsmfs_backend(void);
const struct backend *wsmfs_backend(void) { return &docker_backend; }
