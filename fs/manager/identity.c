// SPDX-License-Identifier: Apache-2.0
#include "fs/manager/identity.h"

#include <blake2.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

/* The policy's word, two separators and three names, and a NUL. */
#define IDENTITY_TEXT_MAX (16 + 2 * 2 + 3 * (NAME_MAX_BYTES + 1) + 1)

static void put_hex(const uint8_t *bytes, size_t n, char *out)
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[2 * n] = '\0';
}

const char *identity_policy(enum isolation policy)
{
    static const char *const words[] = {
        [ISOLATION_PER_AGENT] = "per_agent",
        [ISOLATION_PER_SESSION] = "per_session",
        [ISOLATION_PER_USER] = "per_user",
    };
    return words[policy];
}

static int own_text(char *text, enum isolation policy, const char *user, const char *agent,
                    const char *session)
{
    switch (policy) {
    case ISOLATION_PER_USER:
        return snprintf(text, IDENTITY_TEXT_MAX, "per_user/%s", user);
    case ISOLATION_PER_SESSION:
        return snprintf(text, IDENTITY_TEXT_MAX, "per_session/%s/%s/%s", user, agent, session);
    case ISOLATION_PER_AGENT:
    default:
        return snprintf(text, IDENTITY_TEXT_MAX, "per_agent/%s/%s", user, agent);
    }
}

/* The peer's bytes: no policy's name, two colons as separator (reference: AgentScope 2.0.6,
 * workspace manager, assign_workspace_id). */
static int peer_text(char *text, enum isolation policy, const char *user, const char *agent)
{
    if (policy == ISOLATION_PER_USER)
        return snprintf(text, IDENTITY_TEXT_MAX, "user::%s", user);
    return snprintf(text, IDENTITY_TEXT_MAX, "%s::%s", user, agent);
}

void identity_derive(enum isolation policy, enum id_scheme scheme, const char *user, const char *agent,
                     const char *session, char *out)
{
    char    text[IDENTITY_TEXT_MAX];
    uint8_t digest[ID_DERIVED_DIGITS / 2];
    int     len;

    if (scheme == ID_SCHEME_AGENTSCOPE && policy != ISOLATION_PER_SESSION)
        len = peer_text(text, policy, user, agent);
    else
        len = own_text(text, policy, user, agent, session);
    blake2b(digest, text, NULL, sizeof(digest), (size_t)len, 0);
    put_hex(digest, sizeof(digest), out);
}

bool identity_ambiguous(enum isolation policy, enum id_scheme scheme, const char *user, const char *agent)
{
    char text[IDENTITY_TEXT_MAX];

    if (scheme != ID_SCHEME_AGENTSCOPE || policy != ISOLATION_PER_AGENT)
        return false;
    peer_text(text, policy, user, agent);
    const char *first = strstr(text, "::");
    return first != text + strlen(user) || strstr(first + 1, "::") != NULL;
}

uint64_t identity_number(const char *kind, const char *text)
{
    blake2b_state s;
    uint64_t      n;

    blake2b_init(&s, sizeof(n));
    blake2b_update(&s, (const uint8_t *)kind, strlen(kind));
    blake2b_update(&s, (const uint8_t *)"/", 1);
    blake2b_update(&s, (const uint8_t *)text, strlen(text));
    blake2b_final(&s, (uint8_t *)&n, sizeof(n));
    return n;
}

static bool alphanumeric(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

bool identity_valid(const char *id)
{
    size_t len = strlen(id);

    if (len == 0 || len > ID_MAX_BYTES || !alphanumeric(id[0]) || !alphanumeric(id[len - 1]))
        return false;
    for (size_t i = 0; i < len; i++)
        if (!alphanumeric(id[i]) && id[i] != '-')
            return false;
    return true;
}

bool identity_looks_derived(const char *id)
{
    return strlen(id) == ID_DERIVED_DIGITS && strspn(id, "0123456789abcdef") == ID_DERIVED_DIGITS;
}

int identity_mint(char *out)
{
    uint8_t bytes[ID_MINTED_DIGITS / 2];

    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes))
        return -errno;
    put_hex(bytes, sizeof(bytes), out);
    return 0;
}
