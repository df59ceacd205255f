# SPDX-License-Identifier: Apache-2.0
"""Whatever the disk below does as POSIX says, the mount does as well. What it does not is listed in
docs/posix.md, with the reason, and nowhere else."""

import fcntl
import os
import re
import shutil
import subprocess

import pytest

from harness import CHECKOUT, RENAME_WHITEOUT, errno_of, fallocate, open_errno, read, renameat2, run, write
from workbench import below, crate, native, needs, tmpfs  # pylint: disable=unused-import

pytestmark = pytest.mark.root

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


# Of the exceptions those that pass or not as it happens.
SOMETIMES = {'open::etxtbsy'}


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
    worse = {name for name, r in on_disk.items() if r == 'ok' and on_mount.get(name) != 'ok'} | SOMETIMES
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


# ── what docs/posix.md says besides ─────────────────────────────────────────────────────────

GETFLAGS, COLLAPSE, INSERT = 0x80086601, 8, 32


def test_what_is_said_to_differ_differs_so(common):
    s = common()
    path = s / 'f'
    write(path, 'x' * 8192)
    with open(path, 'r+b', buffering=0) as f:
        assert errno_of(os.open, s.path, os.O_TMPFILE | os.O_RDWR) in ('EOPNOTSUPP', 'ENOTSUP')
        assert errno_of(os.setxattr, path, 'system.posix_acl_access', b'\2\0\0\0') in ('EOPNOTSUPP', 'ENOTSUP')
        assert errno_of(fcntl.ioctl, f, GETFLAGS, bytearray(8)) == 'ENOTTY'
        assert errno_of(os.preadv, f.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT) in ('EOPNOTSUPP', 'ENOTSUP')
        assert {errno_of(fallocate, f.fileno(), how, 0, 4096) for how in (COLLAPSE, INSERT)} <= {'EOPNOTSUPP', 'ENOTSUP'}
        for change in [lambda: f.write(b'y'), lambda: f.truncate(4096)]:
            os.chmod(path, 0o6755)
            change()
            assert os.stat(path).st_mode & 0o7777 == os.stat(below(s, 'f')).st_mode & 0o7777 == 0o755
    assert errno_of(renameat2, path, s / 'g', RENAME_WHITEOUT) == 'EINVAL'
    os.mknod(s / 'null', 0o20666, os.makedev(1, 3))
    assert errno_of(read, s / 'null') == 'EACCES'
    assert run('stat', '-c', '%W', path).strip() in ('0', '-')
    before = os.stat(path).st_ctime_ns
    os.chown(path, -1, -1)
    assert os.stat(path).st_ctime_ns == before
    shutil.copy('/bin/sleep', s / 'sleep')
    with subprocess.Popen([s / 'sleep', '60']) as sleeper:
        try:
            assert open_errno(s / 'sleep', os.O_WRONLY | os.O_TRUNC) == 'ETXTBSY' and os.path.getsize(s / 'sleep') > 0
            assert open_errno(s / 'sleep', os.O_RDONLY | os.O_TRUNC) in ('ETXTBSY', None) and os.path.getsize(s / 'sleep') == 0
        finally:
            sleeper.kill()


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
