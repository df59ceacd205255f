# SPDX-License-Identifier: Apache-2.0
"""Whatever the disk below does as POSIX says, the mount does as well. What it does not is listed in
docs/posix.md, with the reason, and nowhere else."""

import os
import re
import subprocess

import pytest

from harness import CHECKOUT, errno_of, read, write
from workbench import below, crate, native, needs, tmpfs  # pylint: disable=unused-import

pytestmark = [pytest.mark.root, pytest.mark.slow]

EVERYBODY = '[user c]\nmode = 0755\n'
# What pjdfstest may use, and two users that every Debian and Ubuntu has.
SETTINGS = '''
[features]
posix_fallocate = {{}}
rename_ctime = {{}}
utime_now = {{}}
utimensat = {{}}
stat_st_birthtime = {{}}
secondary_fs = "{secondary}"
[settings]
naptime = 0.01
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
'''


def exceptions():
    """The tests that docs/posix.md says do not pass."""
    text = read(f'{CHECKOUT}/docs/posix.md')
    table = text.split('## Exceptions', 1)[1].split('\n## ', 1)[0]
    return set(re.findall(r'^\| `([a-z0-9_:]+)` \|', table, re.M))


def results(program, settings, where):
    done = subprocess.run([program, '-c', settings, '-p', where], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=300, check=False)
    found = dict(re.findall(r'^(\S+::\S+|\S+) +(ok|FAILED|skipped)$', done.stdout, re.M))
    total = int(re.search(r'(\d+) total', done.stdout).group(1))
    assert len(found) == total, f'{len(found)} of {total} results understood'
    return found, done.stdout


@pytest.fixture
def common(mount):
    """A session that everybody may enter; its path is short, since it is that of sockets too."""
    def make(**opts):
        s = mount(allow_other=True, symlinks='raw', owner='native', config=EVERYBODY, **opts).session('c/a/s').use()
        os.chmod(s.path, 0o755)
        return s
    return make


@pytest.fixture
def settings(workdir):
    with tmpfs(f'{workdir}/secondary', '16m') as secondary:
        os.chmod(secondary, 0o755)
        write(f'{workdir}/pjdfstest.toml', SETTINGS.format(secondary=secondary))
        yield f'{workdir}/pjdfstest.toml'


@pytest.mark.timeout(900)  # it may have to be built first
@pytest.mark.parametrize('passthrough', ['auto', 'off'])
def test_what_passes_on_the_disk_passes_on_the_mount(common, native, settings, passthrough):
    program = crate('pjdfstest', '0.2.2', (1, 85))
    s = common(passthrough=passthrough)
    on_disk, _ = results(program, settings, native)
    on_mount, text = results(program, settings, s.path)
    assert sum(r == 'ok' for r in on_disk.values()) > 350
    worse = {name for name, r in on_disk.items() if r == 'ok' and on_mount.get(name) != 'ok'}
    details = [text[text.index(name):][:400] for name in worse - exceptions()]
    assert worse == exceptions(), '\n'.join(details)


def test_a_link_too_many_is_emlink(common):
    """pjdfstest leaves this out here: the C library does not know the limit of a FUSE file system."""
    s = common()
    write(s / 'f', 'x')
    os.mkdir(below(s, 'many'))
    failed = None
    for i in range(70000):
        failed = errno_of(os.link, below(s, 'f'), below(s, f'many/{i}'))
        if failed:
            break
    assert failed == 'EMLINK'
    assert errno_of(os.link, s / 'f', s / 'one-more') == 'EMLINK'
    assert os.stat(s / 'f').st_nlink == os.stat(below(s, 'f')).st_nlink


# ── many at once ────────────────────────────────────────────────────────────────────────────

STRESSORS = ['access', 'chmod', 'chown', 'copy-file', 'dentry', 'dir', 'dirdeep', 'dup', 'fallocate', 'fcntl', 'filename',
             'flock', 'fpunch', 'fsize', 'getdent', 'hdd', 'io', 'link', 'locka', 'lockf', 'lockofd', 'mknod', 'open',
             'rename', 'seek', 'sendfile', 'symlink', 'sync-file', 'touch', 'utime', 'xattr']
QUICK = ['access', 'chmod', 'dentry', 'fallocate', 'link', 'lockf', 'rename', 'seek']


def stress(where, seconds, *words):
    done = subprocess.run(['stress-ng', '--temp-path', where, '--verify', '--timeout', str(seconds), '--metrics-brief',
                           '--hdd-bytes', '8m', '--seek-size', '4m', '--fallocate-bytes', '16m', *words], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds * 10 + 60, check=False)
    return done.returncode, done.stdout


@needs('stress-ng')
def test_eight_processes_that_each_do_something_else_find_no_fault(fresh):
    fresh.use()
    words = [w for name in QUICK for w in (f'--{name}', '1')]
    code, text = stress(fresh.path, 5, *words)
    assert code == 0, text
    assert os.listdir(fresh.path) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs('stress-ng')
def test_every_stressor_of_files_with_eight_processes_ends_as_on_the_disk(common, native):
    s = common()
    worse = {}
    for name in STRESSORS:
        code, text = stress(s.path, 2, f'--{name}', '8')
        if code != 0 and stress(native, 2, f'--{name}', '8')[0] == 0:
            worse[name] = text
        left = os.listdir(s.path)
        if left:
            worse[name] = f'left {left[:5]}\n{text}'
    assert not worse, '\n'.join(f'{name}: {text[-2000:]}' for name, text in worse.items())
