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

#define MEMORY_LEAST_BYTES (4u << 20)
#define CPUS_LEAST_MILLI   10u
#define CPUS_MOST_MILLI    (10000u * 1000)
#define PIDS_LEAST         8u
#define PIDS_MOST          4194304u /* the kernel's own PID_MAX_LIMIT */
#define CPU_PERIOD_US      100000u

/* ── reading ─────────────────────────────────────────────────────────────────────────────── */

static int parse_memory(struct cgroup_limits *l, const char *value)
{
    uint64_t bytes;

    if (size_parse(value, &bytes) < 0 || bytes < MEMORY_LEAST_BYTES || bytes > INT64_MAX)
        return -EINVAL;
    l->memory_bytes = bytes;
    return 0;
}

/* "2", "1.5", "0.25": at most three digits behind the point. */
static int parse_cpus(struct cgroup_limits *l, const char *value)
{
    size_t whole = strspn(value, "0123456789");
    const char *rest = value + whole;
    size_t digits = *rest == '.' ? strspn(rest + 1, "0123456789") : 0;
    unsigned long milli;

    if (whole == 0 || whole > 5 || (*rest == '.' && (digits == 0 || digits > 3)) ||
        rest[digits ? digits + 1 : 0] != '\0')
        return -EINVAL;
    milli = strtoul(value, NULL, 10) * 1000;
    for (size_t i = 0, worth = 100; i < digits; i++, worth /= 10)
        milli += (unsigned long)(rest[i + 1] - '0') * worth;
    if (milli < CPUS_LEAST_MILLI || milli > CPUS_MOST_MILLI)
        return -EINVAL;
    l->cpus_milli = (uint32_t)milli;
    return 0;
}

static int parse_pids(struct cgroup_limits *l, const char *value)
{
    size_t digits = strspn(value, "0123456789");
    unsigned long n;

    if (digits == 0 || digits > 7 || value[digits] != '\0')
        return -EINVAL;
    n = strtoul(value, NULL, 10);
    if (n < PIDS_LEAST || n > PIDS_MOST)
        return -EINVAL;
    l->pids = (uint32_t)n;
    return 0;
}

static const struct {
    const char *key;
    unsigned    controller;
    const char *expected;
    int       (*parse)(struct cgroup_limits *l, const char *value);
} keys[] = {
    {"memory", CGROUP_MEMORY, "a size of at least 4M, such as 512M or 2G", parse_memory},
    {"cpus", CGROUP_CPU, "a number of processors of at least 0.01, such as 1.5", parse_cpus},
    {"pids", CGROUP_PIDS, "a number of processes and threads of at least 8, such as 256", parse_pids},
};

int cgroup_limit_parse(struct cgroup_limits *l, const char *key, const char *value, struct err *e)
{
    for (size_t i = 0; i < array_size(keys); i++) {
        if (strcmp(key, keys[i].key) != 0)
            continue;
        if (keys[i].parse(l, value) == 0)
            return 0;
        return err_set(e, -EINVAL, "%s = %s: it wants %s", key, value, keys[i].expected);
    }
    return -ENOENT;
}

const char *cgroup_key(unsigned controller)
{
    for (size_t i = 0; i < array_size(keys); i++)
        if (keys[i].controller == controller)
            return keys[i].key;
    return "";
}

unsigned cgroup_needed(const struct cgroup_limits *l)
{
    return (l->memory_bytes ? CGROUP_MEMORY : 0u) | (l->cpus_milli ? CGROUP_CPU : 0u) |
           (l->pids ? CGROUP_PIDS : 0u);
}

/* ── writing ─────────────────────────────────────────────────────────────────────────────── */

static void format_memory(const struct cgroup_limits *l, char text[64])
{
    snprintf(text, 64, "%" PRIu64, l->memory_bytes);
}

static void format_zero(const struct cgroup_limits *l, char text[64])
{
    (void)l;
    snprintf(text, 64, "0");
}

static void format_unlimited(const struct cgroup_limits *l, char text[64])
{
    (void)l;
    snprintf(text, 64, "-1");
}

static uint64_t quota_us(const struct cgroup_limits *l)
{
    return (uint64_t)l->cpus_milli * CPU_PERIOD_US / 1000;
}

static void format_cpu_v2(const struct cgroup_limits *l, char text[64])
{
    snprintf(text, 64, "%" PRIu64 " %u", quota_us(l), CPU_PERIOD_US);
}

static void format_period(const struct cgroup_limits *l, char text[64])
{
    (void)l;
    snprintf(text, 64, "%u", CPU_PERIOD_US);
}

static void format_quota(const struct cgroup_limits *l, char text[64])
{
    snprintf(text, 64, "%" PRIu64, quota_us(l));
}

static void format_pids(const struct cgroup_limits *l, char text[64])
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
