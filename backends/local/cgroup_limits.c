// SPDX-License-Identifier: Apache-2.0
/* The keys, and how their values are written in the two versions of control groups (the kernel's
 * Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/). */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/local/cgroup_internal.h"
#include "fs/base/cleanup.h"
#include "fs/config/config.h"

#define CPU_PERIOD_US 100000u

static const struct {
    const char *key;
    unsigned    controller;
} keys[] = { { "memory", CGROUP_MEMORY }, { "cpus", CGROUP_CPU }, { "pids", CGROUP_PIDS } };

const char *cgroup_key(unsigned controller)
{
    for (size_t i = 0; i < array_size(keys); i++)
        if (keys[i].controller == controller)
            return keys[i].key;
    return "";
}

unsigned cgroup_needed(const struct sandbox_limits *l)
{
    return (l->memory_bytes ? CGROUP_MEMORY : 0u) | (l->cpus_milli ? CGROUP_CPU : 0u) |
           (l->pids ? CGROUP_PIDS : 0u);
}

/* ── writing ─────────────────────────────────────────────────────────────────────────────── */

static void format_memory(const struct sandbox_limits *l, char text[64])
{
    snprintf(text, 64, "%" PRIu64, l->memory_bytes);
}

static void format_zero(const struct sandbox_limits *l, char text[64])
{
    (void)l;
    snprintf(text, 64, "0");
}

static void format_unlimited(const struct sandbox_limits *l, char text[64])
{
    (void)l;
    snprintf(text, 64, "-1");
}

static uint64_t quota_us(const struct sandbox_limits *l)
{
    return (uint64_t)l->cpus_milli * CPU_PERIOD_US / 1000;
}

static void format_cpu_v2(const struct sandbox_limits *l, char text[64])
{
    snprintf(text, 64, "%" PRIu64 " %u", quota_us(l), CPU_PERIOD_US);
}

static void format_period(const struct sandbox_limits *l, char text[64])
{
    (void)l;
    snprintf(text, 64, "%u", CPU_PERIOD_US);
}

static void format_quota(const struct sandbox_limits *l, char text[64])
{
    snprintf(text, 64, "%" PRIu64, quota_us(l));
}

static void format_pids(const struct sandbox_limits *l, char text[64])
{
    snprintf(text, 64, "%u", l->pids);
}

/* v1 refuses a limit with swap below one without, in either direction of a change: so the former is
 * lifted first and set last. */
static const struct cgroup_file files[] = {
    {CGROUP_MEMORY, true, false, "memory.max", "max", format_memory},
    {CGROUP_MEMORY, true, true, "memory.swap.max", "max", format_zero},
    {CGROUP_CPU, true, false, "cpu.max", "max", format_cpu_v2},
    {CGROUP_PIDS, true, false, "pids.max", "max", format_pids},
    {CGROUP_MEMORY, false, true, "memory.memsw.limit_in_bytes", "-1", format_unlimited},
    {CGROUP_MEMORY, false, false, "memory.limit_in_bytes", "-1", format_memory},
    {CGROUP_MEMORY, false, true, "memory.memsw.limit_in_bytes", "-1", format_memory},
    {CGROUP_CPU, false, false, "cpu.cfs_period_us", "100000", format_period},
    {CGROUP_CPU, false, false, "cpu.cfs_quota_us", "-1", format_quota},
    {CGROUP_PIDS, false, false, "pids.max", "max", format_pids},
    {0},
};

const struct cgroup_file *cgroup_files(void)
{
    return files;
}
