// SPDX-License-Identifier: Apache-2.0
/* What [sandbox] says, as the local backend takes it. */
#ifndef WSMFS_LOCAL_KEYS_H
#define WSMFS_LOCAL_KEYS_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/local/cgroup.h"
#include "backends/local/shown.h"
#include "fs/base/err.h"

struct config_pair;

struct local_keys {
    struct sandbox_words env; /* K=V */
    struct shown_bind *binds;
    size_t  n_binds;
    struct sandbox_limits limits;
    bool    limited;       /* one of them is set */
    bool    network_host;
    bool    named;         /* `user =` */
    uint32_t inside_uid, inside_gid;
};

/* Reads the pairs of a mount; a key that is not known or cannot be honoured is refused by its name.
 * -EINVAL with a sentence. *out is to be finished in any case. */
int local_keys_read(const struct config_pair *pairs, struct local_keys *out, struct err *e);
void local_keys_finish(struct local_keys *k);

#endif
