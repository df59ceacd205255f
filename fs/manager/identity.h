// SPDX-License-Identifier: Apache-2.0
/* Names and the ids derived from them: pure functions, no state, no I/O. */
#ifndef WSMFS_MANAGER_IDENTITY_H
#define WSMFS_MANAGER_IDENTITY_H

#include <stdbool.h>
#include <stdint.h>

#include "fs/config/config.h"

#define NAME_MAX_BYTES     255
#define ID_MAX_BYTES       40
#define ID_DERIVED_DIGITS  16
#define ID_MINTED_DIGITS   32

/* Design section 1: one component, 1 to 255 bytes of valid UTF-8 (no surrogates, no overlong
 * forms), no '/', no control characters (C0, DEL, C1), no leading dot. */
bool name_valid(const char *name);

/* A name that exists by itself as soon as it is looked up: valid, no dot unless it has an '@', and
 * none of the words that tools look for when they search parent directories. */
bool name_plain(const char *name);

/* The words of that table, NULL-terminated; for the documentation check. */
const char *const *name_searched_words(void);

/* A policy as it is written: "per_agent". Static. */
const char *identity_policy(enum isolation policy);

/* Writes the id of a workspace: BLAKE2b with an 8-byte digest, in hex, over the policy's name and
 * the names that count joined by '/' ("per_agent/alice/coder"); with ID_SCHEME_AGENTSCOPE the bytes
 * "user::agent" and "user::" user of the peer (its per_session ids are random: there the own scheme
 * is used). `out` holds ID_DERIVED_DIGITS + 1 bytes. */
void identity_derive(enum isolation policy, enum id_scheme scheme, const char *user, const char *agent,
                     const char *session, char *out);

/* True where the peer's scheme gives two tenants one id: with ID_SCHEME_AGENTSCOPE and per_agent
 * "a::b"/"c" and "a"/"b::c" hash the same bytes. Such an agent does not exist and cannot be made,
 * so that no two tenants ever share by accident. Never true with the own scheme. */
bool identity_ambiguous(enum isolation policy, enum id_scheme scheme, const char *user, const char *agent);

/* 64 bits of BLAKE2b over `kind`, '/' and `text`, for numbers that must not change between runs. */
uint64_t identity_number(const char *kind, const char *text);

/* An id that a user may write: 1 to 40 of [a-z0-9-], first and last alphanumeric. */
bool identity_valid(const char *id);

/* Exactly 16 hex digits: looks like a derived id, so nobody may sit on it before its owner. */
bool identity_looks_derived(const char *id);

/* 32 random hex digits; `out` holds ID_MINTED_DIGITS + 1 bytes. -errno when no randomness. */
int identity_mint(char *out);

#endif
