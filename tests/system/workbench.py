# SPDX-License-Identifier: Apache-2.0
"""Programs that tests build for themselves, and the same work done in a session and on the disk."""

import contextlib
import fcntl
import os
import re
import shutil
import stat
import subprocess
import tempfile

import pytest

from harness import CHECKOUT, read, run

CACHE = os.environ.get('WSMFS_TEST_CACHE') or f'{CHECKOUT}/build-tests'
PROGRAMS = f'{CHECKOUT}/tests/system/programs'


def needs(*programs):
    missing = [p for p in programs if not shutil.which(p)]
    return pytest.mark.skipif(bool(missing), reason=f'no {" and no ".join(missing)} here')


# ── programs from elsewhere ─────────────────────────────────────────────────────────────────

def _cargo_version():
    if not shutil.which('cargo'):
        return None
    found = re.search(r'(\d+)\.(\d+)', run('cargo', '--version', check=False))
    return tuple(map(int, found.groups())) if found else None


def crate(name, version, needed):
    """The path of a program that cargo installs, built once and kept; skips where that cannot be."""
    path = f'{CACHE}/crates/bin/{name}'
    have = _cargo_version()
    if have is None or have < needed:
        is_there = 'there is no cargo here' if have is None else f'cargo {have[0]}.{have[1]} is too old'
        pytest.skip(f'{name}: {is_there}, {needed[0]}.{needed[1]} is needed')
    os.makedirs(f'{CACHE}/crates', exist_ok=True)
    with open(f'{CACHE}/crates/lock', 'w', encoding='utf-8') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if f' {version}' not in run(path, '--version', check=False) if os.path.exists(path) else True:
            done = subprocess.run(['cargo', 'install', '--quiet', '--locked', '--debug', '--root', f'{CACHE}/crates',
                                   f'{name}@{version}'], env=os.environ | {'CARGO_TARGET_DIR': f'{CACHE}/crates/target'},
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=500, check=False)
            if done.returncode != 0:
                lines = done.stderr.strip().splitlines() or ['no reason given']
                pytest.skip(f'{name} could not be installed: {lines[0]}')
    return path


# ── programs of our own ─────────────────────────────────────────────────────────────────────

@pytest.fixture(scope='session')
def compiled(top):
    """compiled('lock.c', flags…): the path of a program made from tests/system/programs/."""
    made = {}

    def build(source, *flags):
        if source not in made:
            made[source] = f'{top}/{source.rsplit(".", 1)[0]}{".so" if "-shared" in flags else ""}'
            run('cc', '-O1', '-Wall', '-Werror', *flags, '-o', made[source], f'{PROGRAMS}/{source}')
        return made[source]
    return build


def without(lib, *calls):
    """The environment of a daemon that the named system calls fail for (programs/without.c)."""
    # The sanitizers' runtime wants to be first, and the daemon says so unless told otherwise.
    asan = ':'.join(filter(None, ['exitcode=99:detect_leaks=1:verify_asan_link_order=0', os.environ.get('ASAN_OPTIONS')]))
    return {'LD_PRELOAD': lib, 'WSMFS_TEST_WITHOUT': ','.join(calls), 'ASAN_OPTIONS': asan}


# ── the disk beside the mount ───────────────────────────────────────────────────────────────

@pytest.fixture
def native(top):
    path = tempfile.mkdtemp(dir=top)
    os.chmod(path, 0o755)
    yield path
    shutil.rmtree(path)


def below(s, name=''):
    """Where the files of a session lie on the disk (isolation by agent)."""
    return f'{s.daemon.basedir}/{os.path.dirname(s.names)}' + (f'/{name}' if name else '')


@contextlib.contextmanager
def tmpfs(path, size):
    os.makedirs(path, exist_ok=True)
    run('mount', '-t', 'tmpfs', '-o', f'size={size},mode=0700', 'tmpfs', path)
    try:
        yield path
    finally:
        run('umount', '-l', path, check=False)


def snapshot(path, skip=()):
    """Everything of a tree that a tool can see and that should not depend on where it lies: name →
    kind, mode, owner, links, content. `skip`: names relative to `path` left out with all below."""
    found = {}
    for where, dirs, files in os.walk(path):
        rel = os.path.relpath(where, path)
        for name in sorted(dirs + files):
            key = os.path.normpath(f'{rel}/{name}')
            if key in skip:
                if name in dirs:
                    dirs.remove(name)
                continue
            full = os.path.join(where, name)
            st = os.lstat(full)
            what = (stat.S_IFMT(st.st_mode), stat.S_IMODE(st.st_mode), st.st_uid, st.st_gid)
            if stat.S_ISREG(st.st_mode):
                what += (st.st_nlink, read(full))
            elif stat.S_ISLNK(st.st_mode):
                what += (os.readlink(full),)
            found[key] = what
    return found
