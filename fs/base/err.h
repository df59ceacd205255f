// SPDX-License-Identifier: Apache-2.0
/* An error as wsmfs passes it around: a number for the caller, a sentence for the user. */
#ifndef WSMFS_BASE_ERR_H
#define WSMFS_BASE_ERR_H

#include <stddef.h>

#define ERR_TEXT_MAX 400

/* Lives with the caller. A function that takes one fills it when, and only when, it fails. The
 * sentence travels unchanged up to `.wsm/error`; whoever returns an error does not log it too. */
struct err {
    int  code; /* negative errno, 0 while nothing went wrong */
    char text[ERR_TEXT_MAX];
};

/* Fills `e` (NULL is fine) and returns `code`, so that `return err_set(e, -EIO, "…")` reads well.
 * `code` is a negative errno. A text that is too long is cut. Any thread. */
int err_set(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* As err_set, with ": " and the system's own words for `code` behind the text. */
int err_sys(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Forgets an earlier failure. */
void err_clear(struct err *e);

#endif
