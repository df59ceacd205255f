// SPDX-License-Identifier: Apache-2.0
#include <stdint.h>
#include <string.h>

#include "fs/base/utf8.h"
#include "fs/manager/identity.h"

/* What tools look for, by name alone, in each directory above the one they work in. Names with a
 * dot never exist by themselves, so only words without one need to be here. */
static const char *const searched_words[] = {
    /* version control: a bare repository, old systems' folders */
    "HEAD", "objects", "refs", "config", "commondir", "hooks", "CVS", "RCS", "SCCS", "_darcs",
    "_FOSSIL_", "_MTN",
    /* packages beside the code */
    "node_modules", "bower_components", "jspm_packages", "site-packages", "packages", "vendor",
    "deps", "elm-stuff", "debian",
    /* build descriptions */
    "Makefile", "makefile", "GNUmakefile", "BSDmakefile", "Kbuild", "Kconfig", "SConstruct",
    "Sconstruct", "sconstruct", "SConscript", "wscript", "WORKSPACE", "BUILD", "BUCK", "TARGETS",
    "MODULE", "REPO", "DEPS", "Justfile", "justfile", "JUSTFILE", "Taskfile", "Earthfile",
    "Tiltfile", "Snakefile", "Jamfile", "Jamroot", "project-root", "Cask", "Eldev", "Package",
    "dune", "dune-project", "dune-workspace", "lakefile", "lean-toolchain", "rust-toolchain",
    "gradlew", "mvnw", "Setup", "PKGBUILD", "APKBUILD",
    /* descriptions of environments and services */
    "Dockerfile", "dockerfile", "Containerfile", "Vagrantfile", "Jenkinsfile", "Procfile", "Gemfile",
    "Rakefile", "rakefile", "Guardfile", "Capfile", "Thorfile", "Berksfile", "Cheffile",
    "Puppetfile", "Brewfile", "Podfile", "Cartfile", "Fastfile", "Dangerfile", "Appraisals",
    "Pipfile", "Cargofile", "artisan",
    /* results and trees of an installation (python, ruby, compilers) */
    "build", "_build", "builddir", "target", "out", "dist", "bin", "sbin", "lib", "lib64", "libexec",
    "include", "share", "etc", "Lib", "Modules", "blib", "__pycache__",
    /* indexes of the code */
    "tags", "TAGS", "GTAGS", "GRTAGS", "GPATH", "cscope", "ID",
    /* owners and licences, which linters look for */
    "OWNERS", "CODEOWNERS", "PATENTS", NULL,
};

bool name_valid(const char *name)
{
    size_t len = strlen(name);

    if (len == 0 || len > NAME_MAX_BYTES || *name == '.')
        return false;
    while (*name) {
        uint32_t c;
        size_t   n = utf8_read(name, &c);
        if (n == 0 || c == '/' || utf8_is_control(c))
            return false;
        name += n;
    }
    return true;
}

static bool name_searched(const char *name)
{
    for (size_t i = 0; searched_words[i]; i++)
        if (strcmp(name, searched_words[i]) == 0)
            return true;
    return false;
}

bool name_plain(const char *name)
{
    if (!name_valid(name))
        return false;
    if (strchr(name, '.') && !strchr(name, '@'))
        return false;
    return !name_searched(name);
}

const char *const *name_searched_words(void)
{
    return searched_words;
}
