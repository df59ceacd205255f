// SPDX-License-Identifier: Apache-2.0
/* Counters and what `metrics` shows (Prometheus text exposition, version 0.0.4). Names no tenant. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/manager/internal.h"

/* Upper bounds of the histogram of provisioning times, milliseconds. */
static const int64_t bucket_ms[PROVISION_BUCKETS] = { 1, 10, 100, 500, 2000, 10000, 60000, 300000 };

_Atomic uint64_t *manager_counter(struct manager *m, const char *name)
{
    for (size_t i = 0; i < COUNTERS_MAX; i++) {
        struct counter *c = &m->counters[i];
        const char *there = atomic_load_explicit(&c->name, memory_order_acquire);
        if (!there && atomic_compare_exchange_strong(&c->name, &there, name))
            there = name;
        if (there == name || strcmp(there, name) == 0)
            return &c->value;
    }
    return NULL;
}

void manager_count(struct manager *m, const char *name, uint64_t n)
{
    _Atomic uint64_t *value = manager_counter(m, name);

    if (value)
        atomic_fetch_add_explicit(value, n, memory_order_relaxed);
}

void metrics_provisioned(struct manager *m, int64_t start_ns)
{
    int64_t took_ns = clock_ns() - start_ns;
    size_t  i = 0;

    while (i < PROVISION_BUCKETS && took_ns > bucket_ms[i] * NS_PER_MS)
        i++;
    atomic_fetch_add(&m->provision_buckets[i], 1);
    atomic_fetch_add(&m->provision_sum_us, (uint64_t)(took_ns / 1000));
    manager_count(m, "wsmfs_provisions_total", 1);
}

static void put_states(struct manager *m, FILE *out)
{
    fputs("# HELP wsmfs_workspaces Workspaces by state.\n# TYPE wsmfs_workspaces gauge\n", out);
    for (int s = 0; s < WS_STATES; s++)
        fprintf(out, "wsmfs_workspaces{state=\"%s\"} %zu\n", workspace_state_name((enum workspace_state)s),
                atomic_load(&m->by_state[s]));
    fprintf(out, "# HELP wsmfs_sessions Known sessions.\n# TYPE wsmfs_sessions gauge\nwsmfs_sessions %zu\n",
            atomic_load(&m->known_sessions));
    fprintf(out, "# HELP wsmfs_running_jobs Jobs that run.\n# TYPE wsmfs_running_jobs gauge\nwsmfs_running_jobs %u\n",
            atomic_load(&m->running_jobs));
}

static void put_provisioning(struct manager *m, FILE *out)
{
    uint64_t sum = 0;

    fputs("# HELP wsmfs_provision_seconds Time from the first access until ready.\n"
          "# TYPE wsmfs_provision_seconds histogram\n", out);
    for (size_t i = 0; i < PROVISION_BUCKETS; i++) {
        sum += atomic_load(&m->provision_buckets[i]);
        fprintf(out, "wsmfs_provision_seconds_bucket{le=\"%g\"} %" PRIu64 "\n", (double)bucket_ms[i] / 1000, sum);
    }
    sum += atomic_load(&m->provision_buckets[PROVISION_BUCKETS]);
    fprintf(out,
            "wsmfs_provision_seconds_bucket{le=\"+Inf\"} %" PRIu64 "\nwsmfs_provision_seconds_sum %.6f\n"
            "wsmfs_provision_seconds_count %" PRIu64 "\n",
            sum, (double)atomic_load(&m->provision_sum_us) / 1e6, sum);
}

/* Counters that differ in their labels alone are one metric and stand together. */
static int by_name(const void *a, const void *b)
{
    const struct counter *const *x = a, *const *y = b;

    return strcmp(atomic_load(&(*x)->name), atomic_load(&(*y)->name));
}

static void put_counters(struct manager *m, FILE *out)
{
    struct counter *all[COUNTERS_MAX];
    size_t n = 0, last = 0;
    const char *before = "";

    for (; n < COUNTERS_MAX && atomic_load(&m->counters[n].name); n++)
        all[n] = &m->counters[n];
    qsort(all, n, sizeof(all[0]), by_name);
    for (size_t i = 0; i < n; i++) {
        const char *name = atomic_load(&all[i]->name);
        size_t base = strcspn(name, "{");
        if (base != last || strncmp(name, before, base) != 0)
            fprintf(out, "# TYPE %.*s counter\n", (int)base, name);
        fprintf(out, "%s %" PRIu64 "\n", name, atomic_load(&all[i]->value));
        before = name;
        last = base;
    }
}

char *manager_text_metrics(struct manager *m, size_t *size, int64_t *changed_ms)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, size);

    *changed_ms = wall_ms();
    if (!out)
        return NULL;
    fprintf(out,
            "# HELP wsmfs_info What runs.\n# TYPE wsmfs_info gauge\n"
            "wsmfs_info{version=\"%s\",backend=\"%s\"} 1\n"
            "# HELP wsmfs_uptime_seconds Since the start.\n# TYPE wsmfs_uptime_seconds gauge\n"
            "wsmfs_uptime_seconds %.3f\n",
            WSMFS_VERSION, m->backend->name, (double)(wall_ms() - m->start_ms) / 1000);
    put_states(m, out);
    put_provisioning(m, out);
    put_counters(m, out);
    fclose(out);
    return text;
}
