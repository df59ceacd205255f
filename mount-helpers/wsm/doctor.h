// SPDX-License-Identifier: Apache-2.0
/* What `wsm doctor` finds out beyond `wsmfs --check`. */
#ifndef WSM_DOCTOR_H
#define WSM_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>

enum verdict { OK, NOTE, MISSING };

#define FOUND_MAX 512

/* What one check found, and how to mend it; for a note: what is lost. */
struct finding {
    char found[FOUND_MAX], mend[FOUND_MAX];
};

/* A check. `checked` is what `wsmfs --check` has printed. */
struct doctor_check {
    const char *what;
    enum verdict (*check)(const char *checked, struct finding *f);
    bool of_backend; /* of the one called `what`: only where wsmfs has it */
};

/* Ends with an entry without a name. */
extern const struct doctor_check doctor_checks[];

/* Prints one finding as `wsmfs --check` does. */
void doctor_print(enum verdict v, const char *what, const struct finding *f);

/* Looks at each wsmfs mount of this machine, prints what it finds. */
void doctor_mounts(void);

void finding_say(char *to, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
