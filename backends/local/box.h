// SPDX-License-Identifier: Apache-2.0
/* The sandboxes of this mount: which workspace has one, found again after a restart by what lies in
 * <state_dir>/sandbox:
 *
 *     <id>.sock   the socket on which its guest listens
 *     <id>        its mark, and whose it is
 */
#ifndef WSMFS_LOCAL_BOX_H
#define WSMFS_LOCAL_BOX_H

#include "backends/backend.h"
#include "backends/local/keys.h"
#include "backends/local/shown.h"

struct boxes;

/* `keys` and `shown` are borrowed and outlive it, as what `m` points to. Refuses what cannot be
 * honoured on this machine. */
int boxes_create(const struct backend_mount *m, const struct local_keys *keys, const struct shown *shown,
                 struct boxes **out, struct err *e);
/* Frees all; sandboxes run on. NULL is fine. */
void boxes_destroy(struct boxes *bs);

/* Tries what boxes_create() and a first job would need, for --check: makes and keeps nothing. `*mounts` says whether
 * boxes_create() would accept it. */
int boxes_try(const struct backend_mount *m, const struct local_keys *keys, const struct shown *shown, bool *mounts,
              struct err *e);

/* The backend's callbacks of these names. */
int boxes_stream(struct boxes *bs, const struct backend_workspace *w, bool start, struct err *e);
int boxes_close(struct boxes *bs, const struct backend_workspace *w, struct err *e);
int boxes_list(struct boxes *bs, void (*found)(const struct backend_found *f, void *arg), void *arg, struct err *e);

bool boxes_processes(struct boxes *bs, const struct backend_workspace *w);

/* Whether a job could be confined here: tried. 0, or -errno and the sentence that says what to do. */
int boxes_check(struct boxes *bs, struct err *e);

#endif
