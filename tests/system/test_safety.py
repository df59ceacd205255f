# SPDX-License-Identifier: Apache-2.0
"""Whatever an agent leaves in its workspace, nobody who reads the mount is led out of it, hangs in
it or gains a right by it."""

import errno
import os
import socket
import stat
import subprocess
import time

import pytest

from harness import (ALICE_UID, BOB_GID, BOB_UID, Child, as_alice, as_bob, as_user, errno_of, in_child, open_errno, read,
                     run, wait_for, write)
from workbench import below, compiled  # pylint: disable=unused-import

pytestmark = pytest.mark.timeout(200)

CANARY = 'the canary outside'


@pytest.fixture
def canary(workdir):
    """A directory outside, whose content must neither be read nor changed through a mount."""
    path = f'{workdir}/outside'
    os.makedirs(f'{path}/sub/deep')
    for name in ['f', 'sub/f', 'sub/deep/f']:
        write(f'{path}/{name}', CANARY)
    yield path
    found = {os.path.relpath(os.path.join(w, n), path) for w, ds, fs in os.walk(path) for n in ds + fs}
    assert found == {'f', 'sub', 'sub/f', 'sub/deep', 'sub/deep/f'}, 'something was made or removed outside'
    for name in ['f', 'sub/f', 'sub/deep/f']:
        assert read(f'{path}/{name}') == CANARY
        st = os.stat(f'{path}/{name}')
        assert stat.S_IMODE(st.st_mode) == 0o644 and st.st_nlink == 1
        assert os.listxattr(f'{path}/{name}') == []


# ── links ───────────────────────────────────────────────────────────────────────────────────

@pytest.fixture
def planted(s, canary):
    """A session full of links that try to lead to the canary."""
    s.use()
    root = below(s)
    up = '../' * 30
    os.makedirs(f'{root}/a/b/c')
    links = {
        'abs': canary, 'abs-file': f'{canary}/f', 'up': up + canary[1:], 'up-file': f'{up}{canary[1:]}/f',
        'one': 'two', 'two': 'three', 'three': 'abs', 'chain': 'a/b/chain', 'a/b/chain': '../../three',
        'late': 'a/b/../../../../../../../../../../../../../../../../../..' + canary,
        'e': '../../../../../../../../../../../../..', 'through': 'e' + canary, 'through-dots': 'e/../..' + canary,
        'proc': '/proc/self/root' + canary, 'fd': '/proc/self/cwd/../' * 20 + canary[1:],
        'mount': s.daemon.mnt, 'mount-other': f'{s.daemon.mnt}/bob/coder/s1', 'mount-up': f'{s.daemon.mnt}/../outside/f',
        'base': s.daemon.basedir, 'base-other': f'{s.daemon.basedir}/bob/coder/f', 'state': f'{s.daemon.top}/state',
        'a/dotdot': '../../..', 'a/b/dotdot': '../../../..', 'a/b/c/x': '../../../e' + canary + '/f',
        'workspace': '/workspace/../' + canary[1:], 'workspace2': '/workspace/e' + canary,
        'slashes': '//' + canary + '//f', 'dot': './././abs', 'self': '.', 'loop': 'loop', 'control': '.wsm/../../../..' + canary,
        'rooted': '.wsm/root' + canary + '/f', 'rooted-up': '.wsm/root/../../../../..' + canary,
    }
    for name, target in links.items():
        os.symlink(target, f'{root}/{name}')
    os.link(f'{root}/abs', f'{root}/a/b/c/hard', follow_symlinks=False)
    os.link(f'{root}/up-file', f'{root}/a/hard-file', follow_symlinks=False)
    secret = s.daemon.session('bob/coder/s1').use()
    write(secret / 'f', CANARY)
    return [*links, 'a/b/c/hard', 'a/hard-file']


def test_no_planted_link_leads_a_reader_or_a_writer_out(s, planted):
    for name in planted:
        for tail in ['', '/f', '/sub/f', '/bob/coder/s1/f', '/bob/coder/f', '/..' * 6 + '/outside/f']:
            path = s / name + tail
            for flags in [os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_CREAT | os.O_TRUNC]:
                try:
                    fd = os.open(path, flags | os.O_NONBLOCK, 0o600)
                except OSError:
                    continue
                where = os.readlink(f'/proc/self/fd/{fd}')
                try:
                    if flags == os.O_RDONLY and stat.S_ISREG(os.fstat(fd).st_mode):
                        assert CANARY not in os.read(fd, 1000).decode(errors='replace'), f'{name}{tail} leads to {where}'
                    elif flags == os.O_WRONLY | os.O_CREAT | os.O_TRUNC:
                        assert where.startswith(s.path), f'{name}{tail} leads to {where}'
                finally:
                    os.close(fd)


def test_nothing_is_made_or_changed_outside_through_a_planted_link(s, planted):
    for name in planted:
        for change in [lambda p: os.mkdir(f'{p}/new'), lambda p: write(f'{p}/new', 'x'), lambda p: os.symlink('x', f'{p}/new'),
                       lambda p: os.link(s / 'a', f'{p}/new'), lambda p: os.unlink(f'{p}/f'), lambda p: os.rmdir(f'{p}/sub'),
                       lambda p: os.rename(f'{p}/f', s / 'stolen'), lambda p: os.rename(s / 'a', f'{p}/a'),
                       lambda p: os.chmod(f'{p}/f', 0o777), lambda p: os.truncate(f'{p}/f', 0), lambda p: os.truncate(p, 0),
                       lambda p: os.setxattr(f'{p}/f', 'user.x', b'1'), lambda p: os.utime(f'{p}/f', (1, 1)),
                       lambda p: os.chmod(p, 0o777) if name not in ('self', 'dot') else None,
                       lambda p: os.link(f'{p}/f', s / f'linked-{time.monotonic_ns()}')]:
            errno_of(change, s / name)


def test_walkers_that_follow_links_stay_inside(s, planted):
    for name in planted:  # but for loops and the whole of the sandbox's root, in which they would walk for long
        target = os.readlink(s / name).rstrip('/')
        if target.endswith('.wsm/root') or os.path.realpath(s / name) == s.path:
            os.unlink(s / name)
    for tool in [['grep', '-rl', CANARY, s.path], ['grep', '-Rl', CANARY, s.path], ['find', '-L', s.path, '-name', 'deep'],
                 ['tar', '-chf', '/dev/null', s.path], ['du', '-L', s.path]]:
        done = subprocess.run(['timeout', '-s', 'KILL', '60', *tool], capture_output=True, text=True, errors='replace', check=False)
        assert done.returncode != -9
        assert done.stdout == '' or tool[0] == 'du', done.stdout


def test_the_daemons_own_chores_do_not_follow_links(s, planted, canary):
    """Closing, destroying, taking sizes: done by the daemon as root."""
    assert planted
    os.symlink(canary, below(s, 'a/b/c/last'))
    s.ctl('close')
    os.listdir(s.path)
    s.ctl('destroy')
    assert not os.path.lexists(below(s, 'abs'))
    assert read(f'{canary}/sub/deep/f') == CANARY


@pytest.mark.parametrize('seconds', [3])
def test_a_directory_that_becomes_a_link_and_back_all_the_time_is_no_way_out(s, canary, compiled, seconds):
    s.use()
    root = below(s)
    os.makedirs(f'{root}/walk/d/sub/deep')
    for name in ['f', 'sub/f', 'sub/deep/f']:
        write(f'{root}/walk/d/{name}', 'inside')
    os.symlink(canary, f'{root}/walk/x')
    swapper = subprocess.Popen([compiled('swapper.c'), f'{root}/walk', 'd', 'x', str(seconds)], stdout=subprocess.PIPE)
    seen = {'inside': 0, 'refused': 0}

    def use(n):
        path = s / 'walk/d'
        acts = [lambda: read(f'{path}/f'), lambda: read(f'{path}/sub/deep/f'), lambda: os.listdir(f'{path}/sub'),
                lambda: write(f'{path}/sub/new', 'x'), lambda: os.mkdir(f'{path}/new{n}'), lambda: os.chmod(f'{path}/sub/f', 0o600),
                lambda: os.truncate(f'{path}/f', 0) or write(f'{path}/f', 'inside'), lambda: os.unlink(f'{path}/sub/new'),
                lambda: os.rename(f'{path}/f', f'{path}/g') or os.rename(f'{path}/g', f'{path}/f'),
                lambda: os.setxattr(f'{path}/sub/f', 'user.a', b'1'), lambda: os.symlink('t', f'{path}/sub/l{n}'),
                lambda: os.link(f'{path}/sub/f', f'{path}/sub/h{n}')]
        try:
            got = acts[n % len(acts)]()
            assert got is None or CANARY not in got
            assert not isinstance(got, list) or 'deep' in got
            seen['inside'] += 1
        except OSError as e:
            assert e.errno != errno.EIO
            seen['refused'] += 1
    n = 0
    while swapper.poll() is None:
        use(n)
        n += 1
    assert swapper.returncode == 0 and int(swapper.stdout.read()) > 100
    assert seen['inside'] > 0, seen


# ── special files ───────────────────────────────────────────────────────────────────────────

@pytest.mark.root
def test_special_files_on_the_disk_do_not_hang_or_serve_a_reader(s, canary):
    s.use()
    root = below(s)
    os.mkfifo(f'{root}/fifo')
    os.mknod(f'{root}/null', stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(f'{root}/kmsg', stat.S_IFCHR | 0o666, os.makedev(1, 11))
    os.mknod(f'{root}/disk', stat.S_IFBLK | 0o666, os.makedev(254, 0))
    write(f'{root}/plain', 'text')
    with socket.socket(socket.AF_UNIX) as sock:
        os.chdir(root)
        sock.bind('sock')
        os.chdir('/')
        assert open_errno(s / 'sock', os.O_RDONLY) == 'ENXIO'
        for name in ['null', 'kmsg', 'disk']:
            assert open_errno(s / name, os.O_RDONLY) == 'EACCES'
        kinds = {n: stat.S_IFMT(os.lstat(s / n).st_mode) for n in os.listdir(s.path)}
        assert kinds == {n: stat.S_IFMT(os.lstat(f'{root}/{n}').st_mode) for n in os.listdir(root)}
        # who opens a FIFO waits as on any file system, can be interrupted, and nobody else waits
        reader = Child(lambda: open(s / 'fifo', encoding='utf-8').read())
        wait_for(lambda: read(f'/proc/{reader.pid}/stat').rsplit(')', 1)[1].split()[0] == 'S')
        assert in_child(lambda: read(s / 'plain'), 20) == 'text'
        assert open_errno(s / 'fifo', os.O_RDONLY | os.O_NONBLOCK) is None
        os.kill(reader.pid, 9)
        with pytest.raises(Exception, match='-9'):
            reader.result(20)
        run('timeout', '30', 'grep', '-r', 'x', s.path, check=False, timeout=40)
        run('timeout', '30', 'tar', '-cf', '/dev/null', s.path, check=False, timeout=40)
    s.ctl('destroy')  # the daemon does not stop at them either
    assert read(f'{canary}/f') == CANARY


@pytest.mark.root
@pytest.mark.parametrize('other', ['fifo', 'device', 'link'])
def test_a_file_that_becomes_something_else_before_it_is_opened_is_not_opened_as_that(s, canary, compiled, other):
    s.use()
    root = below(s)
    os.mkdir(f'{root}/walk')
    write(f'{root}/walk/f', 'inside')
    if other == 'fifo':
        os.mkfifo(f'{root}/walk/x')
    elif other == 'device':
        os.mknod(f'{root}/walk/x', stat.S_IFCHR | 0o666, os.makedev(1, 5))  # zero
    else:
        os.symlink(f'{canary}/f', f'{root}/walk/x')
    swapper = subprocess.Popen([compiled('swapper.c'), f'{root}/walk', 'f', 'x', '2'], stdout=subprocess.PIPE)
    got = set()
    while swapper.poll() is None:
        for flags in [os.O_RDONLY, os.O_RDWR, os.O_WRONLY, os.O_WRONLY | os.O_CREAT]:
            try:
                fd = os.open(s / 'walk/f', flags | os.O_NONBLOCK)
            except OSError as e:
                assert e.errno != errno.EIO
                continue
            try:
                if flags & os.O_ACCMODE != os.O_WRONLY and stat.S_ISREG(os.fstat(fd).st_mode):
                    got.add(os.read(fd, 100))
            except OSError as e:  # an open FIFO has no handle here: it is looked for by its name
                assert e.errno == errno.ESTALE
            finally:
                os.close(fd)
    assert int(swapper.stdout.read()) > 100
    assert got == {b'inside'}


# ── setuid ──────────────────────────────────────────────────────────────────────────────────

TWO = f'[user alice]\nuid = {ALICE_UID}\n[user common]\nmode = 0755\n'


@pytest.mark.root
@pytest.mark.parametrize('passthrough', ['auto', 'off'])
@pytest.mark.parametrize('how', ['write', 'append', 'truncate', 'mapping', 'fallocate', 'copy_file_range', 'ftruncate'])
def test_a_setuid_file_loses_its_bits_when_a_stranger_changes_it(mount, passthrough, how):
    s = mount(allow_other=True, passthrough=passthrough, config=TWO).session('common/coder/s1').use()
    os.chmod(s.path, 0o755)
    write(s / 'f', 'x' * 8192)
    write(s / 'src', 'y' * 100)
    os.chmod(s / 'src', 0o644)
    os.chmod(s / 'f', 0o6777)
    assert stat.S_IMODE(os.stat(s / 'f').st_mode) == 0o6777

    def change():
        if how == 'truncate':
            return os.truncate(s / 'f', 10)
        fd = os.open(s / 'f', os.O_RDWR | (os.O_APPEND if how == 'append' else 0))
        if how in ('write', 'append'):
            os.write(fd, b'evil')
        elif how == 'ftruncate':
            os.ftruncate(fd, 10)
        elif how == 'fallocate':
            os.posix_fallocate(fd, 0, 20000)
        elif how == 'copy_file_range':
            src = os.open(s / 'src', os.O_RDONLY)
            os.copy_file_range(src, fd, 100, 0, 0)
        else:
            # A mapping changes no bits on a disk either; the open for writing alone does not.
            os.pwrite(fd, b'e', 0)
        os.close(fd)
    as_bob(change)
    assert stat.S_IMODE(os.stat(below(s, 'f')).st_mode) == 0o777
    assert stat.S_IMODE(os.stat(s / 'f').st_mode) == 0o777


@pytest.mark.root
@pytest.mark.parametrize('passthrough', ['auto', 'off'])
def test_a_setuid_file_keeps_its_bits_when_nobody_writes(mount, passthrough):
    s = mount(allow_other=True, passthrough=passthrough, config=TWO).session('common/coder/s1').use()
    os.chmod(s.path, 0o755)
    write(s / 'f', 'x')
    os.chmod(s / 'f', 0o6755)
    os.chown(s / 'f', 0, 0)  # as on a disk: a chown, even to the same ids, takes them
    assert stat.S_IMODE(os.stat(s / 'f').st_mode) == 0o755
    os.chmod(s / 'f', 0o6755)
    as_bob(lambda: read(s / 'f'))
    assert stat.S_IMODE(os.stat(s / 'f').st_mode) == 0o6755 == stat.S_IMODE(os.stat(below(s, 'f')).st_mode)


@pytest.mark.root
def test_a_setuid_file_is_out_of_reach_and_without_effect(mount):
    daemon = mount(allow_other=True, config=TWO)
    s = daemon.session('common/coder/s1').use()
    os.chmod(s.path, 0o755)
    run('cp', '/usr/bin/id', below(s, 'id'))
    os.chmod(below(s, 'id'), 0o6755)
    assert as_bob(lambda: run(s / 'id', '-u')).strip() == str(BOB_UID)
    assert as_bob(lambda: errno_of(os.stat, below(s, 'id'))) == 'EACCES'
    # not even with the bits on everything below
    for path in [daemon.basedir]:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o700 and os.stat(path).st_uid == 0


# ── owner = tenant ──────────────────────────────────────────────────────────────────────────

@pytest.fixture
def tenant(mount):
    """A session of a configured user, with files on the disk that belong to others."""
    s = mount(allow_other=True, owner='tenant', config=f'[user alice]\nuid = {ALICE_UID}\ngid = {BOB_GID}\n').session().use()
    root = below(s)
    os.mkdir(f'{root}/theirs', 0o700)
    write(f'{root}/theirs/f', 'x')
    os.chmod(f'{root}/theirs/f', 0o600)
    write(f'{root}/foreign', 'x')
    os.chown(f'{root}/foreign', BOB_UID, BOB_GID)
    os.chmod(f'{root}/foreign', 0o640)
    os.symlink('foreign', f'{root}/link')
    return s


def tenant_does(function):
    return as_user(ALICE_UID, BOB_GID, function)


@pytest.mark.root
def test_every_file_is_shown_as_the_tenants(tenant):
    for name in ['theirs', 'theirs/f', 'foreign', 'link']:
        st = tenant_does(lambda n=name: os.lstat(tenant / n))
        assert (st.st_uid, st.st_gid) == (ALICE_UID, BOB_GID), name
    listing = tenant_does(lambda: run('ls', '-lnR', tenant.path))
    assert not [line for line in listing.splitlines() if line and line[0] in '-dl' and line.split()[2:4] != [str(ALICE_UID), str(BOB_GID)]]


@pytest.mark.root
def test_the_tenant_can_change_what_anybody_on_the_other_side_wrote(tenant):
    def work():
        write(tenant / 'theirs/f', 'changed')
        write(tenant / 'theirs/new', 'x')
        os.mkdir(tenant / 'theirs/dir')
        os.chmod(tenant / 'foreign', 0o600)
        with open(tenant / 'foreign', 'a', encoding='utf-8') as f:
            f.write('more')
        os.utime(tenant / 'foreign', (1, 1))
        os.setxattr(tenant / 'foreign', 'user.a', b'1')
        os.rename(tenant / 'foreign', tenant / 'theirs/moved')
        os.unlink(tenant / 'theirs/f')
        os.rmdir(tenant / 'theirs/dir')
        return read(tenant / 'theirs/moved')
    assert tenant_does(work) == 'xmore'


@pytest.mark.root
def test_what_the_tenant_makes_belongs_to_the_tenant(tenant):
    tenant_does(lambda: (write(tenant / 'f', 'x'), os.mkdir(tenant / 'd'), os.symlink('f', tenant / 'l'), os.mkfifo(tenant / 'p')) and None)
    write(tenant / 'by-root', 'x')
    for name in ['f', 'd', 'l', 'p', 'by-root']:
        st = os.lstat(below(tenant, name))
        assert (st.st_uid, st.st_gid) == (ALICE_UID, BOB_GID), name


@pytest.mark.root
def test_chown_succeeds_to_the_own_ids_for_root_without_effect_and_for_others_not_at_all(tenant):
    path = tenant / 'foreign'
    assert tenant_does(lambda: errno_of(os.chown, path, ALICE_UID, BOB_GID)) is None
    assert tenant_does(lambda: errno_of(os.chown, path, -1, BOB_GID)) is None
    assert tenant_does(lambda: errno_of(os.chown, path, BOB_UID, -1)) == 'EPERM'
    assert tenant_does(lambda: errno_of(os.chown, path, -1, 12345)) == 'EPERM'
    os.chown(path, 12, 34)
    st = os.stat(path)
    assert (st.st_uid, st.st_gid) == (ALICE_UID, BOB_GID)
    assert (os.stat(below(tenant, 'foreign')).st_uid, os.stat(below(tenant, 'foreign')).st_gid) == (BOB_UID, BOB_GID)


@pytest.mark.root
def test_the_tenant_makes_no_setuid_file_of_somebody_else(tenant):
    assert tenant_does(lambda: errno_of(os.chmod, tenant / 'foreign', 0o4755)) == 'EPERM'
    assert tenant_does(lambda: errno_of(os.chmod, tenant / 'foreign', 0o2755)) == 'EPERM'
    assert tenant_does(lambda: errno_of(os.chmod, tenant / 'foreign', 0o755)) is None
    assert stat.S_IMODE(os.stat(below(tenant, 'foreign')).st_mode) == 0o755

    def own():
        write(tenant / 'own', 'x')
        os.chmod(tenant / 'own', 0o6755)
        return stat.S_IMODE(os.stat(tenant / 'own').st_mode)
    assert tenant_does(own) == 0o6755
    tenant_does(lambda: os.chown(tenant / 'own', ALICE_UID, BOB_GID))
    assert stat.S_IMODE(os.stat(tenant / 'own').st_mode) == 0o755


@pytest.mark.root
def test_acls_are_neither_shown_nor_taken(tenant):
    run('setfacl', '-m', f'u:{BOB_UID}:rw', below(tenant, 'foreign'))
    assert [n for n in os.listxattr(tenant / 'foreign') if 'acl' in n] == []
    assert errno_of(os.getxattr, tenant / 'foreign', 'system.posix_acl_access') in ('ENOTSUP', 'EOPNOTSUPP')
    assert errno_of(os.setxattr, tenant / 'foreign', 'system.posix_acl_access', b'\2\0\0\0') in ('ENOTSUP', 'EOPNOTSUPP')


@pytest.mark.root
def test_others_do_not_get_into_a_tenants_files(tenant):
    assert as_bob(lambda: errno_of(read, tenant / 'foreign')) == 'EACCES'
    assert as_bob(lambda: errno_of(os.listdir, tenant.path)) == 'EACCES'


@pytest.mark.root
def test_tar_and_rsync_by_root_and_by_the_tenant_work(tenant):
    copy = 'mkdir x && cp -a theirs foreign link x/ && tar -cf t.tar x && mkdir y && tar -xpf t.tar -C y && diff -r x y/x'
    run('sh', '-c', copy, cwd=tenant.path)
    run('rm', '-r', *(tenant / n for n in ['x', 'y', 't.tar']))
    tenant_does(lambda: run('sh', '-c', copy, cwd=tenant.path))


def test_alice_herself_works_in_a_native_workspace_as_on_a_disk(mount):
    if os.geteuid() != 0:
        pytest.skip('needs root')
    s = mount(allow_other=True, owner='native', config=f'[user alice]\nuid = {ALICE_UID}\n').session()
    as_alice(lambda: write(s / 'f', 'x'))
    assert os.stat(s / 'f').st_uid == ALICE_UID
    os.chown(s / 'f', BOB_UID, -1)
    assert os.stat(s / 'f').st_uid == BOB_UID
    os.chmod(s / 'f', 0o600)
    assert as_alice(lambda: errno_of(read, s / 'f')) == 'EACCES'
