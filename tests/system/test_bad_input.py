# SPDX-License-Identifier: Apache-2.0
"""Everything that a user, a tool or an administrator can get wrong: it is refused with a reason,
nothing is changed, and the mount goes on working."""

import fcntl
import os
import signal
import stat
import subprocess
import threading

import pytest

from harness import (WSMFS, MountFailed, environment, errno_of, in_child, mount_fails, open_errno, put, read, run, wait_for, write)

# ── names ───────────────────────────────────────────────────────────────────────────────────

BAD_NAMES = {
    'leading dot': b'.x', 'two leading dots': b'..x', 'three dots': b'...', 'newline': b'a\nb', 'tab': b'a\tb',
    'escape': b'a\x1bb', 'bell': b'\x07', 'del': b'a\x7f', 'c1 control': 'a\x85b'.encode(), 'nel': '\x9f'.encode(),
    'byte ff': b'\xff', 'lone continuation': b'a\x80', 'overlong slash': b'\xc0\xaf', 'overlong 3': b'\xe0\x80\xaf',
    'cut off': b'\xe2\x82', 'surrogate': b'\xed\xa0\x80', 'above unicode': b'\xf4\x90\x80\x80', 'latin-1': b'caf\xe9',
    '256 bytes': b'x' * 256, '256 bytes of utf-8': 'ü'.encode() * 128, '1000 bytes': b'y' * 1000,
}
GOOD_NAMES = {
    'leading dash': b'-rf', 'two dashes': b'--help', 'percent': b'..%2f'[2:] + b'x', 'emoji': '👩‍👩‍👧'.encode(),
    'combining': 'é'.encode(), 'space': b' ', 'quote': b"'", 'backslash': b'a\\b', 'dollar': b'$(id)', 'star': b'*',
    'semicolon': b';rm', '255 bytes': b'x' * 255, 'colon': b'a:b', 'rtl': '\u202ex'.encode(), 'nbsp': '\xa0'.encode(),
    'null word': b'null', 'number': b'0', 'tilde': b'~root', 'comma': b'a,b', 'equals': b'a=b', 'hash': b'#x',
}
LEVELS = ['', 'alice', 'alice/coder']


@pytest.mark.parametrize('level', LEVELS)
@pytest.mark.parametrize('what', BAD_NAMES)
def test_a_bad_name_is_enoent_to_look_at_and_einval_to_make(shared_daemon, fresh, level, what):
    where = os.path.join(os.fsencode(shared_daemon.mnt), os.fsencode(level))
    path = os.path.join(where, BAD_NAMES[what])
    before = os.listdir(where)
    assert errno_of(os.stat, path) == 'ENOENT'
    assert errno_of(os.mkdir, path) == 'EINVAL'
    assert os.listdir(where) == before


@pytest.mark.parametrize('what', BAD_NAMES)
def test_a_bad_name_does_not_exist_by_the_managers_path_either(shared_daemon, fresh, what):
    where = os.path.join(os.fsencode(shared_daemon.mnt), b'.wsm/sessions')
    for level in [b'', b'alice', b'alice/coder']:
        assert errno_of(os.stat, os.path.join(where, level, BAD_NAMES[what])) == 'ENOENT'


@pytest.mark.parametrize('what', GOOD_NAMES)
def test_an_odd_but_good_name_works_like_any_other(shared_daemon, fresh, what):
    name = os.fsdecode(GOOD_NAMES[what])
    s = shared_daemon.session('/'.join([fresh.names.split('/', maxsplit=1)[0], name, name]))
    write(s / 'f', 'x')
    assert read(s / 'f') == 'x'
    assert name in os.listdir(os.path.dirname(s.path))
    assert s.status()['session'] == name
    s.ctl('close')


def test_dots_and_slashes_in_a_path_are_resolved_by_the_kernel_alone(shared_daemon, fresh):
    write(fresh / 'f', 'x')
    assert read(f'{fresh.path}/./../{os.path.basename(fresh.path)}//f') == 'x'
    assert read(f'{fresh.path}/../../../{fresh.names}/f') == 'x'


def test_a_path_longer_than_the_kernel_allows_is_enametoolong(shared_daemon, fresh):
    assert errno_of(os.stat, fresh / ('d/' * 2100)) == 'ENAMETOOLONG'


def test_very_deep_paths_that_do_not_exist_are_enoent(shared_daemon, fresh):
    assert errno_of(os.stat, fresh / ('d/' * 1500 + 'f')) == 'ENOENT'
    assert errno_of(os.makedirs, fresh / ('d/' * 500)) is None
    run('rm', '-rf', fresh / 'd')


# ── control writes ──────────────────────────────────────────────────────────────────────────

BAD_WRITES = {
    'unknown verb': b'dance\n', 'half a verb': b'provisio', 'verb in capitals': b'CLOSE\n', 'binary': bytes(range(1, 256)),
    'a NUL': b'pin\0\n', 'NULs': b'\0' * 100, 'not utf-8': b'\xff\xfe\n', 'ttl without a number': b'ttl\n',
    'ttl of words': b'ttl soon\n', 'negative ttl': b'ttl -1\n', 'ttl with a bad unit': b'ttl 5x\n',
    'ttl too large': b'ttl 99999999999999999999\n', 'ttl with a fraction': b'ttl 1.5h\n', 'ttl twice': b'ttl 5 6\n',
    'pin with an argument': b'pin down\n', 'close with a typo': b'close forced\n', 'provision with a typo': b'provision later\n',
    'shell': b'$(reboot)\n', 'escape': b'\x1b[2Jpin\n', 'json': b'{"verb": "pin"}\n', 'a long word': b'x' * 4000,
    'path': b'../../etc/passwd\n', 'tab behind a verb': b'pin\tx\n', 'leading dash': b'-pin\n',
}


@pytest.mark.parametrize('what', BAD_WRITES)
def test_a_malformed_write_to_ctl_is_einval_with_a_reason_and_changes_nothing(shared_daemon, fresh, what):
    before = {k: v for k, v in fresh.status().items() if k not in ('error', 'idle_s')}
    assert errno_of(put, f'{fresh.control}/ctl', BAD_WRITES[what]) == 'EINVAL'
    assert fresh.error() != ''
    assert '\x1b' not in fresh.error() and '\0' not in fresh.error()
    assert {k: v for k, v in fresh.status().items() if k not in ('error', 'idle_s')} == before


@pytest.mark.parametrize('what', BAD_WRITES)
def test_a_malformed_write_to_the_managers_ctl_is_refused(shared_daemon, fresh, what):
    fresh.use()
    assert errno_of(put, f'{shared_daemon.mnt}/.wsm/ctl', BAD_WRITES[what]) in ('EINVAL', 'ENOENT')
    assert fresh.state() == 'ready'


@pytest.mark.parametrize('name', ['ctl', 'id'])
@pytest.mark.parametrize('size', [4097, 65536, 1 << 20])
def test_a_write_that_is_too_large_is_efbig_and_changes_nothing(shared_daemon, fresh, name, size):
    own = fresh.id()
    assert errno_of(put, f'{fresh.control}/{name}', b'pin\n' * (size // 4 + 1)) == 'EFBIG'
    assert fresh.status()['pinned'] is False and fresh.id() == own


@pytest.mark.concurrency
def test_concurrent_garbage_neither_harms_nor_mixes(daemon, s):
    def garbage(i):
        for n in range(100):
            put_quietly(f'{s.control}/ctl', bytes([(i * 31 + n * 7) % 255 + 1]) * (n + 1))
            put_quietly(f'{s.control}/id', bytes([(i * 17 + n * 5) % 255 + 1]) * (n + 1))
            put_quietly(f'{daemon.mnt}/.wsm/ctl', bytes([(i * 13 + n) % 255 + 1]) * (n + 1))
    threads = [threading.Thread(target=garbage, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    s.bind('')
    write(s / 'f', 'x')
    assert s.state() == 'ready'


def put_quietly(path, data):
    errno_of(put, path, data)


# ── the command line ────────────────────────────────────────────────────────────────────────

BAD_OPTIONS = {
    'unknown option': 'nonsense', 'unknown option with a value': 'nonsense=1', 'bad isolation': 'isolation=per_planet',
    'empty isolation': 'isolation=', 'bad ttl': 'ttl=soon', 'negative ttl': 'ttl=-5', 'ttl too large': 'ttl=9999999999999d',
    'bad names': 'names=some', 'bad users': 'users=few', 'bad max_live': 'max_live=many', 'negative max_live': 'max_live=-1',
    'max_live too large': 'max_live=99999999999999', 'bad provision': 'provision=never', 'bad owner': 'owner=me',
    'bad symlinks': 'symlinks=wild', 'bad passthrough': 'passthrough=perhaps', 'bad log level': 'log_level=loud',
    'missing config': 'config=/nonexistent/wsmfs.ini', 'config is a directory': 'config=/etc', 'bad scheme': 'id_scheme=md5',
    'capitals': 'ISOLATION=per_agent', 'bad instance': 'instance=../x', 'bad provision_timeout': 'provision_timeout=x',
    'bad readers': 'readers=-3', 'bad grace': 'grace=1y',
}


@pytest.mark.parametrize('what', BAD_OPTIONS)
def test_a_bad_option_is_refused_by_name(mount, what):
    d = mount.prepare()
    word = BAD_OPTIONS[what]
    key, _, value = word.partition('=')
    d.opts[key] = value if '=' in word else True
    code, text = mount_fails(d)
    assert code == 1
    assert key in text or value in text
    assert not os.path.exists(f'{d.basedir}/.wsmfs/policy') or what.startswith('bad instance')


BAD_WORDS = [[], ['local:/tmp'], ['local:/tmp', '/mnt', 'more'], ['--nonsense'], ['', '/mnt'], ['local:x', ''],
             ['nosuchbackend:x', '/mnt'], ['/nonexistent/backend.so:', '/mnt'], ['/etc/passwd:', '/mnt'],
             ['local:x', '/mnt', '-o'], ['-o', 'ttl=1h'], [':', '/mnt'], ['local:x', '-o', 'ttl=5']]


@pytest.mark.parametrize('words', BAD_WORDS, ids=lambda w: ' '.join(w) or 'nothing')
def test_a_bad_command_line_is_refused_with_a_reason(words):
    done = subprocess.run([WSMFS, *words], capture_output=True, text=True, timeout=60, env=environment(), check=False)
    assert done.returncode == 1
    assert done.stderr.strip() != ''


# ── the config file ─────────────────────────────────────────────────────────────────────────

BAD_FILES = {  # text → what the complaint names: the line and the word
    'unknown key': ('[mount]\nttl = 1h\nnonsense = 1\n', ('3', 'nonsense')),
    'unknown section': ('[mount]\n[planet]\nx = 1\n', ('planet',)),
    'bad value': ('[mount]\n\nttl = soon\n', ('3', 'ttl', 'soon')),
    'bad enumeration': ('[mount]\nisolation = none\n', ('2', 'isolation')),
    'malformed line': ('[mount]\nttl = 1h\nthis is no line\n', ('3',)),
    'unclosed section': ('[mount\nttl = 1h\n', ('1',)),
    'key before any section': ('ttl = 1h\n', ('1', 'ttl')),
    'unknown user key': ('[user alice]\nuid = 1\nshoe = 43\n', ('3', 'shoe')),
    'bad uid': ('[user alice]\nuid = alice?\n', ('2', 'uid')),
    'negative uid': ('[user alice]\nuid = -7\n', ('2', 'uid')),
    'bad mode': ('[user alice]\nmode = 9999\n', ('2', 'mode')),
    'user without a name': ('[user]\nuid = 1\n', ('user',)),
    'user with a bad name': ('[user .x]\nuid = 1\n', ('1',)),
    'unknown backend key': ('[backend local]\nnonsense = 1\n', ('config.ini:2: nonsense of section [backend local]: ',)),
    'sandbox key that local cannot honour': ('[sandbox]\nnonsense = 4G\n', ('config.ini:2: nonsense of section [sandbox]: ',)),
    'bad sandbox value': ('[sandbox]\n\nenv = A=1\nmemory = 1\n', ('config.ini:4: memory of section [sandbox]: ',)),
    'binary': ('\x00\x01\x02\n', ()),
}


@pytest.mark.parametrize('what', BAD_FILES)
def test_a_bad_config_file_is_refused_by_line_and_word(mount, what):
    text, names = BAD_FILES[what]
    d = mount.prepare()
    d.set_config(text)
    code, said = mount_fails(d)
    assert code == 1
    for name in names:
        assert name in said, (name, said)


def test_a_long_value_in_a_config_file_is_taken_whole_or_refused(mount):
    """The INI library of some distributions cuts lines at 200 bytes."""
    d = mount.prepare()
    state = f'{d.top}/' + 'x' * 200
    del d.opts['state_dir']
    d.set_config(f'[mount]\nstate_dir = {state}\n')
    d.start()
    assert os.listdir(state)


def test_a_sandbox_key_that_the_backend_cannot_honour_refuses_the_mount(mount):
    d = mount.test_backend(start=False)
    d.set_config(d.config + '[sandbox]\nmemory = 4G\n')
    code, said = mount_fails(d)
    assert code == 1 and 'memory' in said


# ── the base directory ──────────────────────────────────────────────────────────────────────

def test_a_missing_base_directory_is_made_for_the_daemon_alone(mount):
    d = mount.prepare()
    assert not os.path.exists(d.basedir)
    d.start()
    assert stat.S_IMODE(os.stat(d.basedir).st_mode) == 0o700


@pytest.mark.parametrize('mode', [0o755, 0o711, 0o777, 0o750])
def test_a_base_directory_that_others_can_enter_is_refused(mount, mode):
    d = mount.prepare()
    os.mkdir(d.basedir)
    os.chmod(d.basedir, mode)
    code, text = mount_fails(d)
    assert code == 1
    assert d.basedir in text and '700' in text


@pytest.mark.root
def test_a_base_directory_of_another_owner_is_refused(mount):
    d = mount.prepare()
    os.mkdir(d.basedir, 0o700)
    os.chown(d.basedir, 1, 1)
    code, text = mount_fails(d)
    assert code == 1 and d.basedir in text


def test_a_base_directory_that_is_a_file_is_refused(mount):
    d = mount.prepare()
    write(d.basedir, 'x')
    code, text = mount_fails(d)
    assert code in (1, 32) and d.basedir in text
    assert read(d.basedir) == 'x'


def test_a_base_directory_in_a_place_that_does_not_exist_is_refused(mount):
    d = mount.prepare()
    d.source = f'local:{d.top}/file/base'
    write(f'{d.top}/file', '')
    code, text = mount_fails(d)
    assert code in (1, 32) and f'{d.top}/file/base' in text


@pytest.fixture
def small_disk(mount):
    """A tmpfs of 1 MiB for the base directory."""
    d = mount.prepare()
    os.mkdir(f'{d.top}/disk')
    run('mount', '-t', 'tmpfs', '-o', 'size=1m,mode=700', 'tmpfs', f'{d.top}/disk')
    d.basedir = f'{d.top}/disk/base'
    d.source = f'local:{d.basedir}'
    yield d
    try:
        d.stop()
    finally:
        run('umount', f'{d.top}/disk')


@pytest.mark.root
def test_a_full_disk_is_enospc_to_the_writer_and_nothing_else(small_disk):
    d = small_disk.start()
    s = d.session()
    write(s / 'small', 'kept')

    def fill():
        with open(s / 'big', 'wb') as f:
            while True:
                f.write(b'x' * 65536)
                f.flush()
    assert in_child(lambda: errno_of(fill)) == 'ENOSPC'
    assert read(s / 'small') == 'kept'
    assert s.state() == 'ready'
    errno_of(os.listdir, d.session('bob/coder/s1').path)
    os.unlink(s / 'big')
    wait_for(lambda: errno_of(write, s / 'again', 'x' * 1000) is None)
    os.listdir(d.session('bob/coder/s1').path)


@pytest.mark.root
def test_a_base_directory_on_a_full_disk_is_refused_or_works_without_harm(small_disk):
    errno_of(write, f'{small_disk.top}/disk/fill', b'x' * (1 << 20))
    run('dd', 'if=/dev/zero', f'of={small_disk.top}/disk/fill', 'bs=4096', check=False)
    code, text = mount_fails(small_disk)
    assert code in (1, 32) and small_disk.basedir in text
    os.unlink(f'{small_disk.top}/disk/fill')
    small_disk.start()
    write(small_disk.session() / 'f', 'x')


@pytest.mark.root
def test_a_read_only_base_directory_is_refused_unless_the_mount_is_read_only(small_disk):
    small_disk.start()
    write(small_disk.session() / 'f', 'x')
    small_disk.stop()
    run('mount', '-o', 'remount,ro', f'{small_disk.top}/disk')
    code, text = mount_fails(small_disk)
    assert code in (1, 32) and small_disk.basedir in text
    small_disk.start(ro=True)
    assert read(small_disk.session() / 'f') == 'x'
    assert errno_of(write, small_disk.session() / 'g', 'x') == 'EROFS'


def test_a_read_only_mount_changes_nothing(daemon, s):
    write(s / 'f', 'x')
    daemon.restart(ro=True)
    assert read(s / 'f') == 'x'
    assert errno_of(write, s / 'g', 'x') == 'EROFS'
    assert errno_of(os.mkdir, s / 'd') == 'EROFS'
    assert errno_of(os.unlink, s / 'f') == 'EROFS'


@pytest.mark.parametrize('what, content', [('policy', ''), ('policy', 'nonsense\n'), ('policy', '\x00\xff'),
                                           ('policy', 'x' * 100000), ('instance', ''), ('instance', '\x00\xff'),
                                           ('instance', 'x' * 100000), ('instance', '../x\n')])
def test_a_damaged_record_beside_the_workspaces_is_refused_not_guessed(daemon, s, what, content):
    write(s / 'f', 'x')
    daemon.stop()
    path = f'{daemon.basedir}/.wsmfs/{what}'
    old = read(path)
    write(path, content)
    code, text = mount_fails(daemon)
    assert code in (1, 32) and what in text
    write(path, old)
    daemon.start()
    assert read(s / 'f') == 'x'


def test_a_damaged_registry_is_refused_or_replaced_without_harm_to_files(daemon, s):
    write(s / 'f', 'x')
    daemon.stop()
    state = daemon.opts['state_dir']
    for name in os.listdir(state):
        if name.endswith(('.db', '.sqlite', '.sqlite3')):
            write(f'{state}/{name}', 'this is no database' * 1000)
    daemon.expect('regist|database')
    try:
        daemon.start()
    except MountFailed as e:
        daemon.proc = None
        assert 'database' in str(e) or 'registry' in str(e)
        return
    assert read(s / 'f') == 'x'


@pytest.mark.parametrize('kind', ['link', 'file', 'fifo'])
def test_a_workspace_that_is_no_directory_on_the_disk_is_an_error_not_a_way_out(daemon, s, kind):
    outside = f'{daemon.top}/outside'
    os.mkdir(outside)
    write(f'{outside}/secret', 'x')
    os.mkdir(f'{daemon.basedir}/alice', 0o700)
    place = f'{daemon.basedir}/alice/coder'
    if kind == 'link':
        os.symlink(outside, place)
    elif kind == 'file':
        write(place, '')
    else:
        os.mkfifo(place)
    daemon.expect('.*')
    assert in_child(lambda: errno_of(os.stat, s / 'secret')) not in (None, 'ENOENT')
    assert errno_of(os.listdir, s.path) is not None
    assert s.error() != ''


def test_a_link_in_place_of_a_users_directory_on_the_disk_is_no_way_out(daemon, s):
    os.makedirs(f'{daemon.top}/outside/coder')
    write(f'{daemon.top}/outside/coder/secret', 'x')
    os.symlink(f'{daemon.top}/outside', f'{daemon.basedir}/alice')
    daemon.expect('.*')
    assert errno_of(os.stat, s / 'secret') is not None


# ── odd requests ────────────────────────────────────────────────────────────────────────────

def test_opening_a_session_as_a_file_is_refused(shared_daemon, fresh):
    assert open_errno(fresh.path, os.O_WRONLY) == 'EISDIR'
    assert open_errno(fresh.path, os.O_RDWR | os.O_CREAT) == 'EISDIR'
    assert errno_of(os.unlink, fresh.path) in ('EISDIR', 'EPERM')
    assert errno_of(os.truncate, fresh.path, 0) == 'EISDIR'


def test_unknown_ioctls_and_file_handles_are_refused(shared_daemon, fresh):
    write(fresh / 'f', 'x')
    with open(fresh / 'f', 'rb') as f:
        assert errno_of(fcntl.ioctl, f, 0x12345678) in ('ENOTTY', 'EINVAL', 'ENOSYS', 'EOPNOTSUPP')


def test_signals_of_all_harmless_kinds_do_not_end_the_daemon(daemon, s):
    for number in [signal.SIGHUP, signal.SIGPIPE, signal.SIGCONT, signal.SIGWINCH, signal.SIGCHLD]:
        os.kill(daemon.pid, number)
    write(s / 'f', 'x')
    wait_for(lambda: read(s / 'f') == 'x')


def test_giant_numbers_are_refused(shared_daemon, fresh):
    write(fresh / 'f', 'x')
    fd = os.open(fresh / 'f', os.O_RDWR)
    try:
        assert errno_of(os.ftruncate, fd, (1 << 63) - 1) in ('EFBIG', 'EINVAL')
        assert errno_of(os.pwrite, fd, b'x', (1 << 63) - 2) in ('EFBIG', 'EINVAL')
        assert os.pread(fd, 10, 1 << 60) == b''
        assert os.pread(fd, 10, 0) == b'x'
    finally:
        os.close(fd)


def test_xattrs_that_are_too_large_or_of_foreign_kinds_are_refused(shared_daemon, fresh):
    write(fresh / 'f', 'x')
    assert errno_of(os.setxattr, fresh / 'f', 'user.big', b'x' * 65537) in ('E2BIG', 'ENOSPC')
    assert errno_of(os.setxattr, fresh / 'f', 'user.' + 'n' * 300, b'x') in ('ERANGE', 'ENAMETOOLONG')
    assert errno_of(os.setxattr, fresh / 'f', 'nonsense.x', b'x') in ('EOPNOTSUPP', 'ENOTSUP', 'EPERM', 'EINVAL')
