# SPDX-License-Identifier: Apache-2.0
"""Real work gives in a session, byte for byte, what it gives on the disk: for root and for an
ordinary user, with passthrough and without."""

import os
import re
import shutil
import subprocess
import zipfile

import pytest

from harness import ALICE_GID, ALICE_UID, SLOWNESS, read, run, sh, write
from workbench import below, compiled, native, needs, snapshot  # pylint: disable=unused-import

pytestmark = [pytest.mark.root, pytest.mark.timeout(400)]


class Side:
    """Where work is done, and by whom."""

    def __init__(self, path, uid, env):
        self.path = path
        self.uid = uid
        self.env = env

    def __call__(self, line, **more):
        who = {'user': ALICE_UID, 'group': ALICE_GID, 'extra_groups': []} if self.uid else {}
        done = subprocess.run(['bash', '-euc', line], cwd=self.path, env=self.env | more, stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=150 * SLOWNESS, check=False, **who)
        assert done.returncode == 0, f'in {self.path}: {line}\n{done.stdout[-3000:]}'
        return done.stdout.replace(self.path, 'HERE')


class Both:
    """The same work in a session and on the disk."""

    def __init__(self, mount, disk, s):
        self.mount, self.disk, self.s = mount, disk, s

    def __call__(self, line, ignore=None):
        """Runs a shell line on both; the same words are said."""
        said = [side(line) for side in (self.mount, self.disk)]
        if ignore:
            said = [re.sub(ignore, '…', text) for text in said]
        assert said[0] == said[1]
        return said[0]

    def compare(self, where='.', skip=()):
        trees = [snapshot(f'{side.path}/{where}', skip) for side in (self.mount, self.disk)]
        different = {n: (trees[0].get(n), trees[1].get(n)) for n in trees[0].keys() | trees[1].keys()
                     if trees[0].get(n) != trees[1].get(n)}
        assert not different, str(different)[:3000]
        assert trees[0]
        return trees[0]


@pytest.fixture(params=['root', 'an ordinary user', 'root without passthrough'])
def both(request, mount, native, workdir):
    uid = ALICE_UID if request.param == 'an ordinary user' else 0
    config = f'[user alice]\nuid = {ALICE_UID}\ngid = {ALICE_GID}\n' if uid else ''
    s = mount(allow_other=True, passthrough='off' if 'without' in request.param else 'auto', config=config).session().use()
    home = f'{workdir}/home'
    os.mkdir(home)
    write(f'{home}/gitconfig', '[init]\ndefaultBranch = main\n[pack]\nthreads = 1\n[gc]\nauto = 0\n[safe]\ndirectory = *\n')
    if uid:
        for path in (home, native):
            os.chown(path, ALICE_UID, ALICE_GID)
    env = {'PATH': os.environ['PATH'], 'HOME': home, 'LC_ALL': 'C', 'TZ': 'UTC', 'GIT_CONFIG_GLOBAL': f'{home}/gitconfig',
           'GIT_CONFIG_NOSYSTEM': '1', 'PIP_DISABLE_PIP_VERSION_CHECK': '1', 'PIP_NO_CACHE_DIR': '1', 'PYTHONDONTWRITEBYTECODE': '1'}
    for who in ('AUTHOR', 'COMMITTER'):
        env |= {f'GIT_{who}_NAME': 'A', f'GIT_{who}_EMAIL': 'a@example.com', f'GIT_{who}_DATE': '2001-02-03T04:05:06Z'}
    os.chmod(s.path, 0o755)
    os.chmod(native, 0o755)
    return Both(Side(s.path, uid, env), Side(native, uid, env), s)


PROJECT = r'''
mkdir -p project/src project/include project/docs
cd project
for i in $(seq 40); do
    printf '#include "all.h"\nint f%d(int x) { int y = x; for (int i = 0; i < %d; i++) y = y * 3 + i; return y; }\n' $i $i > src/f$i.c
    echo "int f$i(int);" >> include/all.h
    echo "Text $i, $(seq -s ' ' $i)" > docs/$i.txt
done
{ echo '#include "all.h"'; echo '#include <stdio.h>'; echo 'int main(void) { int s = 0;'
  for i in $(seq 40); do echo "s += f$i($i);"; done; echo 'printf("%d\n", s); return 0; }'; } > src/main.c
cat > configure <<'END'
#!/bin/sh
set -e
for header in stdio.h stdlib.h no-such.h; do
    echo "#include <$header>" > conftest.c
    if ${CC:-cc} -c conftest.c -o conftest.o 2>/dev/null; then echo "#define HAVE_$(echo $header | tr a-z.- A-Z__) 1"; fi
    rm -f conftest.c conftest.o
done > config.h.tmp
mv config.h.tmp config.h
sed 's/@CC@/'${CC:-cc}'/' Makefile.in > Makefile
END
chmod 755 configure
cat > Makefile.in <<'END'
objects = $(patsubst src/%.c,obj/%.o,$(wildcard src/*.c))
prog: $(objects) libf.a
	@CC@ -o $@ obj/main.o libf.a
libf.a: $(filter-out obj/main.o,$(objects))
	ar rcsD $@ $(sort $^)
obj/%.o: src/%.c include/all.h config.h | obj
	@CC@ -O1 -Iinclude -c -o $@ $<
obj:
	mkdir $@
END
ln -s src/main.c main.c
ln -s ../project/docs docs/self
cd ..
'''


@needs('git')
def test_git_makes_clones_changes_and_packs_a_repository(both):
    both(PROJECT)
    both('cd project && git init -q . && git add -A && git commit -q -m one && git status --porcelain')
    both('for i in $(seq 12); do (cd project && echo $i >> docs/$i.txt && mv src/f$i.c src/g$i.c && ln docs/$i.txt docs/l$i && '
         'git add -A && git commit -q -m "change $i" && git tag v$i); done')
    both('git clone -q --no-hardlinks project clone && git clone -q project linked && git clone -q --bare project bare.git')
    both('cd clone && git checkout -q -b topic v5 && git merge -q main && git rebase -q main && git stash list && '
         'git log --oneline --stat && git diff --stat v1 && git ls-files -s && git fsck --strict 2>&1', ignore=r'dangling.*\n')
    both('cd project && git gc -q --prune=now && git fsck --full 2>&1 && git count-objects -v && '
         'git cat-file --batch-all-objects --batch-check')
    both('rm -rf clone/src && (cd clone && git status --porcelain && git checkout -q -- . && git status --porcelain && '
         'git worktree add -q ../tree v3 && git clean -fdxq)')
    # the index holds the times and numbers of this very disk; packs and their neighbours are named by content
    indexes = [os.path.relpath(f'{w}/index', both.disk.path) for w, _, files in os.walk(both.disk.path) if 'index' in files]
    both.compare(skip=[*indexes, 'tree/.git', 'clone/.git/worktrees/tree/gitdir', 'project/.git/info/refs'] +
                 [f'{r}/config' for r in ('clone/.git', 'linked/.git', 'bare.git')] +
                 [f'{r}/logs' for r in ('clone/.git', 'linked/.git')] + [f'{r}/packed-refs' for r in ('bare.git',)])


@needs('make', 'cc')
def test_a_c_project_is_configured_and_built(both):
    both(PROJECT)
    both('cd project && ./configure && make -j2 -s && ./prog && make -q && touch src/f3.c && make -s && ./prog')
    both('cp -r project again && cd again && rm -r obj prog libf.a && ./configure && make -s && cmp prog ../project/prog')
    both.compare()


@needs('meson', 'ninja')
def test_a_meson_project_is_built_and_tested(both):
    both(PROJECT)
    both("cd project && printf \"project('p', 'c')\\ne = executable('prog', [%s'src/main.c'], include_directories : 'include')\\n"
         "test('t', e)\\n\" \"$(for i in $(seq 40); do echo -n \"'src/f$i.c', \"; done)\" > meson.build && "
         'meson setup -Dbuildtype=plain b > /dev/null && ninja -C b > /dev/null && meson test -C b --no-rebuild > /dev/null && '
         './b/prog && ninja -C b -n && strip -o prog b/prog')
    assert read(f'{both.mount.path}/project/prog') == read(f'{both.disk.path}/project/prog')


def test_a_virtual_environment_is_made_and_pip_installs_into_it(both, workdir):
    wheel = f'{workdir}/hello_wsm-1.0-py3-none-any.whl'
    with zipfile.ZipFile(wheel, 'w') as z:
        z.writestr('hello_wsm/__init__.py', 'def main():\n    print("hello from", __name__)\n')
        z.writestr('hello_wsm-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\nName: hello-wsm\nVersion: 1.0\n')
        z.writestr('hello_wsm-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
        z.writestr('hello_wsm-1.0.dist-info/entry_points.txt', '[console_scripts]\nhello-wsm = hello_wsm:main\n')
        z.writestr('hello_wsm-1.0.dist-info/RECORD', 'hello_wsm/__init__.py,,\nhello_wsm-1.0.dist-info/METADATA,,\n'
                   'hello_wsm-1.0.dist-info/WHEEL,,\nhello_wsm-1.0.dist-info/entry_points.txt,,\nhello_wsm-1.0.dist-info/RECORD,,\n')
    python = '/usr/bin/python3'
    both(f'{python} -m venv v && v/bin/python -m pip install -q --no-index {wheel} && v/bin/hello-wsm && '
         'v/bin/python -c "import sys, hello_wsm; print(sys.prefix, sys.prefix != sys.base_prefix)" && '
         'v/bin/python -m pip list --format=freeze | grep hello && v/bin/python -m pip uninstall -q -y hello-wsm && '
         '! v/bin/python -c "import hello_wsm" 2>/dev/null')
    assert os.path.islink(f'{both.mount.path}/v/bin/python3')
    # the environment runs from another place too, through an interpreter that is a link on the mount
    both('cd / && "$OLDPWD"/v/bin/python -c "import encodings, ssl; print(1)"')


TREE = r'''
mkdir -p t/a/b/c "t/with space" t/empty
for i in $(seq 60); do head -c $((i * 997)) /dev/zero | tr '\0' "$(printf "\\$(printf %o $((65 + i % 26)))")" > t/a/f$i; done
ln t/a/f1 t/a/b/hard; ln -s ../f2 t/a/b/soft; ln -s nowhere/at/all t/a/dangling
chmod 750 t/a/b; chmod 400 t/a/f3; truncate -s 3M t/a/sparse
mkfifo t/a/pipe; : > t/empty-file; echo x > "t/with space/-file"
# all times long ago: rsync sets none that is of the same second already
find t -exec touch -h -d 2002-03-04 {} +; touch -d '2001-02-03 04:05:06.789' t/a/f4
'''


def with_absolute_links(both):
    """A tree with absolute links that stay within where it lies."""
    both(TREE)
    for side in (both.mount, both.disk):
        side(f'ln -s {side.path}/t/a/f5 t/a/b/abs; ln -s {side.path}/t/a/b t/absdir; ln -s {side.path} t/top; '
             'touch -h -d 2002-03-04 t/a/b/abs t/absdir t/top; touch -d 2002-03-04 t/a/b t/a t')


def same_tree(a, b):
    """Two copies below one place: content, modes, links by what they lead to, times."""
    found = []
    for path in (a, b):
        one = {}
        for where, dirs, files in os.walk(path):
            for name in dirs + files:
                full = f'{where}/{name}'
                st = os.lstat(full)
                what = (oct(st.st_mode), st.st_uid, st.st_gid, st.st_mtime_ns)
                if os.path.islink(full):
                    what += (os.path.exists(full) and read(full) if not os.path.isdir(full) else sorted(os.listdir(full)),)
                elif os.path.isfile(full):
                    what += (st.st_nlink, read(full))
                one[os.path.relpath(full, path)] = what
        found.append(one)
    different = {n for n in found[0].keys() | found[1].keys() if found[0].get(n) != found[1].get(n)}
    assert not different, [(n, found[0].get(n), found[1].get(n)) for n in sorted(different)][:5]
    assert len(found[0]) > 60


@pytest.mark.parametrize('copy', ['cp -a t copy', 'mkdir copy && tar --format=posix -C t -cf - . | tar -C copy -xpf -',
                                  'rsync -aH t/ copy/'], ids=['cp', 'tar', 'rsync'])
def test_a_tree_with_absolute_links_is_copied_whole(both, copy):
    if copy.startswith('rsync') and not shutil.which('rsync'):
        pytest.skip('no rsync here')
    with_absolute_links(both)
    both(copy)
    both.mount('rm t/top copy/top')  # each leads to all that is here, copies too
    same_tree(f'{both.mount.path}/t', f'{both.mount.path}/copy')
    both.disk('rm t/top copy/top')
    for side in (both.mount, both.disk):
        side('rm t/a/b/abs t/absdir copy/a/b/abs copy/absdir')
    both.compare()


@needs('rsync')
def test_rsync_transfers_nothing_the_second_time(both):
    with_absolute_links(both)
    both('rsync -aH t/ copy/')
    again = 'rsync -aHi --stats t/ copy/ | grep -E "^[<>ch.*]|transferred:" || true'
    assert both(again).split() == ['Number', 'of', 'regular', 'files', 'transferred:', '0']
    both('rsync -aHc --delete t/ copy/')
    assert both(again).split()[-1] == '0'
    both('echo more >> t/a/f9')
    assert 'f9' in both(again) and 'f8' not in both(again)


def test_hard_link_farms_share_and_break_as_on_a_disk(both):
    both(TREE)
    both('for i in $(seq 15); do cp -al t farm$i; done; stat -c %h t/a/f1 t/a/f2 farm7/a/b/hard; '
         'echo new > farm3/a/f2.new && mv farm3/a/f2.new farm3/a/f2 && stat -c %h t/a/f2 farm3/a/f2; '
         'echo tail >> farm4/a/f6; tail -c 5 t/a/f6 farm9/a/f6; rm -r farm1 farm2; stat -c %h t/a/f1; '
         'find . -samefile t/a/f1 | sort')
    both.compare()


def test_editors_and_package_managers_write_and_rename(both):
    both('echo one > f; for i in $(seq 100); do echo "$i" > f.tmp; mv f.tmp f; cat f; done | tail -1; ls -A')
    both('echo a > e; sed -i s/a/b/ e; perl -pi.bak -e s/b/c/ e; cat e e.bak; cp -p e e~; echo d > e; mv e~ e; cat e')
    both('for i in $(seq 30); do cp f lock; ln lock held; mv -f lock f.lock; cmp f f.lock; rm held; done; stat -c %h f')
    both('mkdir a b; for i in $(seq 30); do mv -T a x; mv -T b a; mv -T x b; touch a/$i; done; ls a | wc -l; ls b | wc -l')
    both.compare()


@needs('cc')
def test_a_linkers_scattered_writes_give_the_same_file(both, compiled):
    program = compiled('linker.c')
    both(f'for seed in 1 2 3; do {program} out$seed $seed; done; {program} out1 1; sha256sum out*')
    both.compare()


@needs('cc', 'ld')
def test_real_linkers_and_strip_and_objcopy_work(both):
    both(PROJECT)
    both('cd project && for i in src/*.c; do cc -g0 -O1 -Iinclude -c $i -o ${i%.c}.o; done && ld.bfd -r -o all.o src/f*.o && '
         'cc -o prog src/main.o all.o && cc -shared -fPIC -o lib.so src/f1.c -Iinclude && strip prog && ./prog && '
         'objcopy --only-keep-debug lib.so lib.debug && objcopy --strip-all lib.so && nm all.o | wc -l')
    both.compare()


def many_small_files(both, packages):
    """A tree as npm makes it."""
    make = ('import os\nfor p in range(PACKAGES):\n d = f"new/pkg{p}/lib"\n os.makedirs(d)\n for i in range(24):\n'
            '  open(f"{d}/f{i}.js.tmp", "w").write(f"module.exports = {p * i}\\n" * (i + 1))\n  os.rename(f"{d}/f{i}.js.tmp", '
            'f"{d}/f{i}.js")\n open(f"new/pkg{p}/package.json", "w").write("{}")\n os.symlink(f"../pkg{p}/lib/f0.js", f"new/pkg{p}/bin")')
    make = make.replace('PACKAGES', str(packages))
    both(f"/usr/bin/python3 -c '{make}' && mv new node_modules && find node_modules | wc -l && du -s --apparent-size node_modules "
         '| cut -f1 > /dev/null && grep -rl "= 46" node_modules | wc -l && tar -cf t.tar node_modules && mkdir x && tar -xf t.tar -C x')
    both('diff -r node_modules x/node_modules && rm -rf x t.tar && find node_modules -name "*.js" -newer node_modules/pkg0 | wc -l')
    assert len(both.compare()) > 25 * packages
    both('rm -rf node_modules && ls -A')
    assert os.listdir(below(both.s)) == []


@pytest.mark.parametrize('both', ['root', 'an ordinary user'], indirect=True)
def test_a_tree_of_small_files_is_made_listed_moved_and_removed(both):
    many_small_files(both, 40)


@pytest.mark.slow
@pytest.mark.parametrize('both', ['root', 'an ordinary user'], indirect=True)
def test_a_tree_of_twenty_thousand_small_files_is_made_listed_moved_and_removed(both):
    many_small_files(both, 800)


def test_what_was_made_on_the_mount_lies_unchanged_on_the_disk_below(both):
    both(PROJECT + TREE)
    assert snapshot(both.mount.path) == snapshot(below(both.s))
    sh(f'diff -r --no-dereference {both.mount.path}/project {both.disk.path}/project')
    run('cmp', f'{both.mount.path}/t/a/sparse', f'{both.disk.path}/t/a/sparse')
