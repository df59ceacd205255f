// SPDX-License-Identifier: Apache-2.0
/* What comes from the guest. Output is handed on in the pieces in which it arrives, straight from the
 * buffer of the loop; of everything else whole frames are gathered first. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "fs/link/internal.h"

#define READS 4

/* ── greeting ── */

static void copy_program(char *to, size_t size, const struct proto_str *s)
{
    size_t n = s->len < size - 1 ? s->len : size - 1;

    for (size_t i = 0; i < n; i++)
        to[i] = s->s[i] >= ' ' && s->s[i] < 127 ? s->s[i] : '?';
    to[n] = '\0';
}

static void note_guest(struct link *l, const struct proto_guest_hello *m)
{
    scoped_lock(&l->lock);
    memcpy(l->guest.instance.b, m->instance.b, sizeof(m->instance.b));
    l->guest.pid = m->pid;
    l->guest.uid = m->uid;
    l->guest.features = m->features & PROTO_FEATURE_JOBS;
    copy_program(l->guest.program, sizeof(l->guest.program), &m->program);
    l->state = LINK_UP;
}

static bool greet(struct link *l, const struct proto_head *head, const uint8_t *payload)
{
    struct proto_guest_hello m;

    if (head->type != PROTO_GUEST_HELLO ||
        proto_decode(head->type, payload, head->size_bytes - PROTO_HEAD_BYTES, &m) != 0 ||
        m.max_frame_bytes < PROTO_TO_GUEST_MAX_BYTES) {
        link_bad(l, "no greeting");
        return false;
    }
    if (m.version != PROTO_VERSION) {
        link_lose(l, -EPROTO, "the guest in this sandbox speaks another version of the protocol");
        return false;
    }
    if (l->pinned && memcmp(l->guest.instance.b, m.instance.b, sizeof(m.instance.b)) != 0) {
        link_lose(l, -ENXIO, "the sandbox was restarted and its jobs are gone");
        return false;
    }
    note_guest(l, &m);
    l->pinned = l->greeted = true;
    link_put_hello(l, &m.nonce);
    jobs_connected(l);
    if (l->ops->up)
        l->ops->up(l, l->arg, &l->guest);
    return l->fd >= 0;
}

/* ── frames ── */

static bool on_goodbye(struct link *l, const void *msg)
{
    const struct proto_goodbye *m = msg;

    l->progress = false; /* it will say so again: no hurry */
    link_break(l, m->why.code ? m->why.code : -ECONNRESET, m->why.text.len ? m->why.text.s : "the guest hung up");
    return true;
}

static bool on_room(struct link *l, const void *msg) { return stdin_room(l, msg); }
static bool on_exit_frame(struct link *l, const void *msg) { return job_exit(l, msg); }
static bool on_taken(struct link *l, const void *msg) { return job_taken(l, msg); }

static const struct {
    uint16_t type;
    bool   (*handle)(struct link *l, const void *msg); /* false: it broke the protocol */
} handlers[] = {
    { PROTO_EXIT, on_exit_frame },
    { PROTO_STDIN_ROOM, on_room },
    { PROTO_TAKEN, on_taken },
    { PROTO_GOODBYE, on_goodbye },
};

/* Any message that is not an answer. */
union message {
    struct proto_goodbye goodbye;
    struct proto_stdin_room room;
    struct proto_exit exit;
    struct proto_taken taken;
};

static bool event(struct link *l, const struct proto_head *head, const uint8_t *payload)
{
    union message m;

    for (size_t i = 0; i < array_size(handlers); i++)
        if (handlers[i].type == head->type)
            return proto_decode(head->type, payload, head->size_bytes - PROTO_HEAD_BYTES, &m) == 0 &&
                   handlers[i].handle(l, &m);
    return false;
}

/* A whole frame. False: the link broke. */
static bool frame(struct link *l, const struct proto_head *head, const uint8_t *payload)
{
    char text[64];

    if (!l->greeted)
        return greet(l, head, payload);
    if (head->type & PROTO_ANSWER ? request_answered(l, head, payload) : event(l, head, payload))
        return l->fd >= 0;
    snprintf(text, sizeof(text), "a malformed or misplaced frame, %s", proto_type_name(head->type));
    link_bad(l, text);
    return false;
}

/* ── bytes ── */

/* Takes what it can from `p`. Returns the bytes used, 0 when more are needed, -1: the link broke. */
static ssize_t step(struct link *l, const uint8_t *p, size_t len)
{
    uint32_t max = l->greeted ? PROTO_TO_HOST_MAX_BYTES : 8192;
    struct proto_head head;
    struct proto_output m;
    int r;

    if (l->in.left) {
        uint32_t n = l->in.left < len ? l->in.left : (uint32_t)len;

        l->in.left -= n;
        job_output_data(l, p, n);
        return l->fd >= 0 ? (ssize_t)n : -1;
    }
    r = proto_head_decode(p, len, max, &head);
    if (r == -EAGAIN)
        return 0;
    if (r == 0 && l->greeted && head.type == PROTO_OUTPUT) {
        if (len < PROTO_OUTPUT_HEAD_BYTES)
            return 0;
        if (proto_output_decode(&head, p, &m) == 0 && job_output_begin(l, &m))
            return PROTO_OUTPUT_HEAD_BYTES;
        r = -EBADMSG;
    }
    if (r != 0) {
        link_bad(l, l->greeted ? "a malformed frame" : "no greeting");
        return -1;
    }
    if (len < head.size_bytes)
        return 0;
    return frame(l, &head, p + PROTO_HEAD_BYTES) ? (ssize_t)head.size_bytes : -1;
}

/* Keeps an incomplete frame for the next read. */
static void keep(struct link *l, const uint8_t *p, size_t len)
{
    uint8_t *partial;

    if (len == 0) {
        free(steal_ptr(&l->partial));
        l->partial_len = 0;
        return;
    }
    partial = realloc(l->partial, len);
    if (!partial) {
        link_break(l, -ENOMEM, "out of memory");
        return;
    }
    memcpy(partial, p, len);
    l->partial = partial;
    l->partial_len = (uint32_t)len;
}

static void parse(struct link *l, const uint8_t *p, size_t len)
{
    size_t at = 0;
    ssize_t n = 1;

    while (at < len && (n = step(l, p + at, len - at)) > 0)
        at += (size_t)n;
    if (n >= 0)
        keep(l, p + at, len - at);
}

void link_receive(struct link *l)
{
    uint8_t *buf = l->loop->buf;

    for (int turn = 0; l->fd >= 0 && l->readable && turn < READS; turn++) {
        uint32_t before = l->partial_len;
        ssize_t n = recv(l->fd, buf + before, READ_BYTES, MSG_DONTWAIT);

        if (n < 0 && errno == EAGAIN) {
            l->readable = false;
        } else if (n < 0 && errno != EINTR) {
            link_break(l, -errno, "the stream from the guest broke");
        } else if (n == 0) {
            link_break(l, -ECONNRESET, "the guest hung up");
        } else if (n > 0) {
            l->heard_ns = link_now_ns();
            l->silent = 0;
            if (before)
                memcpy(buf, l->partial, before);
            parse(l, buf, before + (size_t)n);
        }
    }
}
