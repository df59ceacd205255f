# SPDX-License-Identifier: Apache-2.0
"""Where things are for the docker backend: what the engine sees of the base directory."""

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import time

import pytest

import watchdog
from conftest import ended
from engine import BUSYBOX, running_engine
from harness import (ALICE_GID, ALICE_UID, BUILD, CHECKOUT, SANITIZER, WSMFS, Session, as_alice, errno_of, mount_fails,
                     mountinfo, open_errno, read, run, sh, wait_for, write)
from jobs import Job, output
from jobs import run as run_job

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

# An engine in a mount namespace of its own. `empty` is another directory there, `copy` one with what
# `copied` holds; what is `real` has the name `other` too; of `partly` one agent's files are others.
APART = '''
    cd {top} && mkdir -p empty copy copied real other partly/alice/hidden && chmod 700 empty copy real partly &&
    mount --make-rprivate / && mount -t tmpfs none empty && mount --bind copied copy && mount --bind real other &&
    mount -t tmpfs none partly/alice/hidden && exec "$@"'''


@pytest.fixture(scope='module', name='engine')
def _engine():
    with running_engine() as engine:
        yield engine


@pytest.fixture(scope='module', name='apart')
def _apart():
    with running_engine(before=['unshare', '-m', 'sh', '-c', APART, 'sh']) as engine:
        yield engine


@pytest.fixture(name='make')
def _make(mount):
    """make(engine, option=value, …): a mount whose workspaces are containers of that engine."""
    used = []

    def make(engine, image='base:1', config='', backend='', start=True, **opts):
        d = mount.prepare()
        d.source = f'docker:{image}'
        d.opts.update({'basedir': d.basedir, **opts})
        d.set_config(f'{config}\n[backend docker]\nhost = {engine.host}\n{backend}\n')
        used.append(engine)
        return d.start() if start else d
    yield make
    ended(mount, *used)


# ── what the engine sees ────────────────────────────────────────────────────────────────────

def refused(engine, s, *words):
    """No container comes, at once, and the sentence says it all; files are not touched by it."""
    s.daemon.expect('engine sees another file system|engine does not have the base directory')
    write(s / 'f', 'here')
    begin = time.monotonic()
    assert errno_of(s.ctl, 'provision') == 'EIO'
    assert time.monotonic() - begin < 10
    assert 'basedir_on_engine' in s.error()
    for word in words:
        assert word in s.error()
    assert engine.containers() == []
    assert read(s / 'f') == 'here'


def test_an_engine_that_lacks_the_base_directory_is_told_from_one_that_has_it(make, apart):
    s = make(apart, basedir=f'{apart.top}/empty/base').session()
    refused(apart, s, f'{apart.top}/empty/base', 'another file system')


def test_an_engine_with_another_directory_of_that_name_makes_no_empty_workspace(make, apart):
    """All paths to be bound are there: only what is in them tells the difference."""
    s = make(apart, basedir=f'{apart.top}/copy').session()
    shutil.copytree(f'{apart.top}/copy/.wsmfs/guest', f'{apart.top}/copied/.wsmfs/guest')
    for name in [f'.wsmfs/run/{s.id()}', 'alice/coder']:
        os.makedirs(f'{apart.top}/copied/{name}')
    refused(apart, s, 'another directory')


def test_one_workspace_that_the_engine_sees_elsewhere_is_refused_alone(make, apart):
    d = make(apart, basedir=f'{apart.top}/partly')
    refused(apart, d.session('alice/hidden/s1'), 'another directory')
    assert output(d.session('alice/coder/s1'), 'echo fine') == 'fine\n'


def test_basedir_on_engine_says_where_the_engine_has_the_base_directory(make, apart):
    s = make(apart, basedir=f'{apart.top}/real', basedir_on_engine=f'{apart.top}/other/').session()
    write(s / 'f', 'from outside\n')
    assert output(s, 'cat f; echo inside > g') == 'from outside\n'
    assert read(s / 'g') == 'inside\n'
    binds = {m['Destination']: m['Source'] for m in apart.inspect(apart.containers()[0])['Mounts']}
    assert binds['/workspace'] == f'{apart.top}/other/alice/coder'


@pytest.mark.parametrize('where', ['empty', 'nowhere', 'partly'])
def test_a_wrong_basedir_on_engine_is_named(make, apart, where):
    s = make(apart, basedir=f'{apart.top}/real', basedir_on_engine=f'{apart.top}/{where}').session('bob/b/s1')
    refused(apart, s, f'{apart.top}/real', f'{apart.top}/{where}')


def test_a_workspace_that_is_being_changed_is_no_other_directory(make, engine):
    """The time of its directory is what is compared."""
    d = make(engine)
    s = d.session()

    def churn():
        while True:
            write(s / 'f', 'x')
            os.unlink(s / 'f')
    d.child(churn)
    for _ in range(5):
        s.ctl('provision')
        assert len(engine.containers()) == 1
        s.ctl('close force')


@pytest.mark.parametrize('year', [1960, 1970, 2400])
def test_a_workspace_whose_directory_has_an_odd_time_is_no_other_directory(make, engine, year):
    """Archives bring such times; that of 1970 is 0, and that of 2400 is not to be had in 64 bits of nanoseconds."""
    s = make(engine).session()
    write(s / 'f', 'here')
    wait_for(lambda: s.state() == 'ready')
    s.ctl('close')
    then = (year - 1970) * 31556952
    os.utime(s.path, (then, then))
    s.ctl('close')
    if os.stat(f'{s.daemon.basedir}/alice/coder').st_mtime != then:
        pytest.skip('the file system here has no such time')
    assert output(s, 'cat f') == 'here'


def test_a_container_that_is_removed_while_it_is_being_made_is_no_other_directory(make, engine):
    s = make(engine).session()
    stop = f'{s.daemon.top}/stop'

    def remove():
        while not os.path.exists(stop):
            for container in engine.containers():
                engine('rm', '-f', container, check=False)
    s.daemon.expect('failed: (the container|somebody|the guest|cancelled)')
    child = s.daemon.child(remove)
    for _ in range(6):
        errno_of(s.ctl, 'provision')
        assert 'basedir_on_engine' not in s.error()
        errno_of(s.ctl, 'close force')
    write(stop, '')
    child.result()
    s.ctl('provision')
    assert output(s, 'echo x') == 'x\n'


def test_another_backend_refuses_basedir_on_engine_by_name(mount):
    d = mount.prepare(basedir_on_engine='/x')
    assert 'basedir_on_engine' in mount_fails(d)[1]


@pytest.mark.parametrize('value', ['relative', '/', '/a/../b', '/a/..'])
def test_a_basedir_on_engine_that_makes_no_sense_is_refused(make, engine, value):
    assert 'basedir_on_engine' in mount_fails(make(engine, basedir_on_engine=value, start=False))[1]


# ── further mounts ──────────────────────────────────────────────────────────────────────────

def test_further_mounts_are_what_they_say(make, engine, workdir):
    os.mkdir(f'{workdir}/tools')
    write(f'{workdir}/tools/t', 'a tool\n')
    s = make(engine, backend=f'mounts = type=bind,source={workdir}/tools,target=/tools,readonly '
             'source=cache,dst=/cache type=tmpfs,target=/scratch,tmpfs-size=1m,tmpfs-mode=1777').session()
    assert output(s, 'cat /tools/t; echo kept > /cache/f; echo gone > /scratch/f') == 'a tool\n'
    code, _, err = run_job(s, 'echo x > /tools/t', 'ro')
    assert code != '0' and 'ead-only' in err
    code, _, err = run_job(s, 'exec /bin/busybox head -c 2000000 /dev/zero > /scratch/g', 'full')
    assert code != '0' and os.path.getsize(f'{root_of(s)}/scratch/g') <= 1 << 20, err
    s.ctl('close')
    assert output(s, 'cat /cache/f; ls /scratch', 'later') == 'kept\n'
    engine('rm', '-f', *engine.containers())
    engine('volume', 'rm', 'cache')


def test_what_is_mounted_is_in_root_too(make, engine, workdir):
    os.mkdir(f'{workdir}/tools')
    write(f'{workdir}/tools/t', 'a tool\n')
    s = make(engine, backend=f'mounts = type=bind,source={workdir}/tools,target=/tools').session()
    assert output(s, 'ln -s /tools/t t; cat t') == read(s / 't') == 'a tool\n'


@pytest.mark.parametrize('mounts,word', [
    ('type=npipe,source=/a,target=/b', 'npipe'), ('type=bind,source=/a,target=b', '"b"'), ('source=a', 'target'),
    ('type=bind,source=a,target=/b', '"a"'), ('source=/a,target=/b', 'type=bind'), ('colour=red,target=/b', 'colour'),
    ('source=a,target=/', '/workspace'), ('source=a,target=/workspace', '/workspace'),
    ('source=a,target=/workspace/x', '/workspace'), ('source=a,target=/.wsm', '/.wsm'),
    ('source=a,target=/.wsm/run', '/.wsm'), ('source=a,target=/proc/x', '/proc'), ('source=a,target=/b/../c', '..'),
    ('source=a,target=/b/', '"/b/"'), ('type=tmpfs,source=a,target=/b', 'tmpfs'),
    ('source=a,target=/b,ro=perhaps', 'perhaps'),
    ('type=tmpfs,target=/b,tmpfs-size=lots', 'lots'), ('type=tmpfs,target=/b,tmpfs-mode=9', 'tmpfs-mode'),
    ('source=a,target=/b,tmpfs-size=1m', 'tmpfs-size'), ('source=a,target=/b source=c,target=/b', '/b'),
    ('type=bind,source=/,target=/b', 'no job may see')])
def test_a_mount_that_makes_no_sense_is_refused_by_name(make, engine, mounts, word):
    said = mount_fails(make(engine, backend=f'mounts = {mounts}', start=False))[1]
    assert 'mounts' in said and word in said


def test_a_bind_with_a_word_too_many_is_refused(make, engine):
    d = make(engine, start=False)
    d.set_config(f'[sandbox]\nbind = /srv:/x:rw:y\n{d.config}')
    assert 'bind of section [sandbox]: "/srv:/x:rw:y": it is not HOST[:INSIDE][:ro|rw]' in mount_fails(d)[1]


@pytest.mark.parametrize('what', ['base', 'base/bob', '.', 'state', 'mnt', 'link'])
@pytest.mark.parametrize('key', ['bind', 'mounts'])
def test_no_mount_shows_the_files_of_other_tenants_or_the_daemons(make, engine, what, key):
    d = make(engine, start=False)
    os.symlink('base', f'{d.top}/link')
    path = os.path.normpath(f'{d.top}/{what}')
    d.set_config(f'[sandbox]\nbind = {path}:/b\n{d.config}' if key == 'bind' else
                 f'{d.config}mounts = type=bind,source={path},target=/b\n')
    said = mount_fails(d)[1]
    assert key in said and 'no job may see' in said


def test_a_path_to_be_bound_that_is_missing_is_named(make, engine):
    s = make(engine, backend='mounts = type=bind,source=/not/there,target=/b').session()
    s.daemon.expect('/not/there')
    assert errno_of(s.ctl, 'provision') == 'EINVAL'
    assert '/not/there' in s.error() and 'basedir_on_engine' not in s.error()


# ── the container's own root ────────────────────────────────────────────────────────────────

def root_of(s):
    return f'{s.inner}/root'


@pytest.fixture(name='s')
def _s(make, engine):
    """A session whose container runs."""
    s = make(engine).session()
    s.ctl('provision')
    return s


def test_root_shows_what_the_image_has(s):
    assert sorted(set(os.listdir(root_of(s))) - {'.dockerenv'}) == ['bin', 'etc']
    assert 'worker:x:1234' in read(f'{root_of(s)}/etc/passwd')
    assert read(f'{root_of(s)}/bin/busybox') == read('/bin/busybox')
    assert read(f'{root_of(s)}/bin/cat') == read('/bin/busybox')  # a link in it
    assert read(f'{s.control}/root/etc/passwd') == read(f'{root_of(s)}/etc/passwd')


def test_an_absolute_link_of_the_workspace_leads_to_the_file_of_the_container(s):
    assert run_job(s, 'mkdir d && ln -s /etc/passwd d/l && echo mine > /own && ln -s /own own && '
                   'ln -s /workspace/d /into')[0] == '0'
    assert os.readlink(s / 'd/l') == '../.wsm/root/etc/passwd'
    assert 'worker:x:1234' in read(s / 'd/l')
    assert read(s / 'own') == 'mine\n'
    assert os.path.realpath(f'{root_of(s)}/into') == s / 'd'


def test_root_follows_what_the_container_changes(s):
    """Also from a file to a directory, under one name."""
    assert run_job(s, 'echo one > /f', 'a')[0] == '0'
    assert read(f'{root_of(s)}/f') == 'one\n'
    assert run_job(s, '/bin/busybox rm /f; echo three > /f; echo x > /g', 'b')[0] == '0'
    assert read(f'{root_of(s)}/f') == 'three\n'
    assert run_job(s, '/bin/busybox rm /f; mkdir -p /f/in', 'c')[0] == '0'
    assert os.listdir(f'{root_of(s)}/f') == ['in']
    assert run_job(s, '/bin/busybox rm -r /f', 'd')[0] == '0'
    assert errno_of(os.stat, f'{root_of(s)}/f') == 'ENOENT'


def test_root_is_read_only(s):
    root = root_of(s)
    for call in [lambda: write(f'{root}/etc/passwd', 'x'), lambda: write(f'{root}/new', 'x'),
                 lambda: os.mkdir(f'{root}/d'), lambda: os.unlink(f'{root}/etc/passwd'), lambda: os.rmdir(f'{root}/etc'),
                 lambda: os.symlink('x', f'{root}/l'), lambda: os.chmod(f'{root}/etc', 0o777),
                 lambda: os.truncate(f'{root}/etc/passwd', 0), lambda: os.mkfifo(f'{root}/p')]:
        assert errno_of(call) == 'EROFS'


def test_without_a_container_root_is_empty_and_a_lookup_brings_one(engine, s):
    assert os.listdir(root_of(s))
    held = os.open(f'{root_of(s)}/etc/passwd', os.O_RDONLY)
    s.ctl('close force')
    os.close(held)
    assert os.listdir(root_of(s)) == [] and engine.containers() == []
    assert s.state() == 'absent'
    assert errno_of(os.stat, f'{root_of(s)}/etc') == 'ENOENT'
    wait_for(lambda: os.path.exists(f'{root_of(s)}/etc/passwd'))
    engine('kill', engine.containers()[0])
    wait_for(lambda: os.listdir(root_of(s)) == [])


def test_root_is_found_again_after_a_restart(make, engine):
    d = make(engine, keep_on_exit=True)
    s = d.session()
    assert run_job(s, 'echo mine > /own')[0] == '0'
    d.restart()
    assert read(f'{root_of(s)}/own') == 'mine\n'


def test_nothing_planted_in_root_leads_out_of_it_or_stops_anybody(s, workdir):
    """Links of all kinds, whatever is no plain file, and names that hide the way up."""
    write(f'{workdir}/secret', 'secret')
    up = '../' * 20
    plant = f'''
        ln -s {workdir}/secret /abs; ln -s {up}{workdir[1:]}/secret /rel; ln -s /proc/1/root /magic; ln -s {up} /up;
        ln -s /proc/self/cwd /cwd; ln -s /dev/zero /zero; /bin/busybox mkfifo /fifo; mkdir /d;
        /bin/busybox mknod /null c 1 3; ln -s / /d/root; ln -s /proc/self/fd /fd; ln -s loop /loop'''
    assert run_job(s, plant)[0] == '0'
    root = root_of(s)
    for name in ['abs', 'rel', f'magic{workdir}/secret', f'up{workdir}/secret', 'fd/0', 'cwd', 'zero']:
        assert errno_of(os.stat, f'{root}/{name}') == 'ENOENT', name
    assert os.path.realpath(f'{root}/d/root') == os.path.realpath(root)
    assert os.path.realpath(f'{root}/up') == os.path.realpath(root)
    assert errno_of(os.stat, f'{root}/loop') == 'ELOOP'
    assert open_errno(f'{root}/fifo', os.O_RDONLY | os.O_NONBLOCK) is None  # the mount's own FIFO, not the container's
    for name in ['proc', 'sys', 'dev', 'workspace', '.wsm']:
        assert name not in os.listdir(root) and errno_of(os.stat, f'{root}/{name}') == 'ENOENT'
    if os.path.lexists(f'{root}/null'):  # the mount is nodev
        assert open_errno(f'{root}/null', os.O_RDONLY) == 'EACCES'


def test_links_into_the_workspace_lead_there_from_the_managers_side_too(s):
    write(s / 'f', 'x')
    other = s.daemon.session('alice/coder/other').use()
    assert run_job(s, 'mkdir /d; ln -s /workspace /d/w; ln -s /workspace/f /f; ln -s ../workspace/../workspace/f /d/f; '
                      'ln -s /workspace/other /other; ln -s /etc/passwd /d/p')[0] == '0'
    for root in [root_of(s), f'{s.control}/root']:
        assert os.path.realpath(f'{root}/d/w') == os.path.realpath(s.path)
        assert read(f'{root}/f') == read(f'{root}/d/f') == 'x'
        assert errno_of(os.stat, f'{root}/other') == 'ENOENT'  # and not the control directory of that session
        assert os.path.realpath(f'{root}/d/p') == os.path.realpath(f'{root}/etc/passwd')
        assert os.lstat(f'{root}/f').st_size == len(os.readlink(f'{root}/f'))
    assert os.path.exists(other.control)


def test_a_step_up_behind_a_link_to_the_top_leads_nowhere(s):
    """Where each of a chain of links leads one directory up from what the one before it leads to."""
    chain = 'ln -s / /up0; ' + ''.join(f'ln -s up{i}/.. /up{i + 1}; ' for i in range(12))
    assert run_job(s, f'{chain} mkdir /d; ln -s ../up0/.. /d/up; ln -s /up12/.. /abs')[0] == '0'
    root = root_of(s)
    for name in [f'up{i}' for i in range(13)] + ['d/up', 'abs']:
        assert os.path.realpath(f'{root}/{name}') == os.path.realpath(root), name


def test_a_huge_directory_of_root_is_listed_whole_and_open_ones_fill_no_memory(s):
    n = 20000
    assert run_job(s, f'mkdir /big; cd /big; i=0; while [ $i -lt {n} ]; do : > f$i; i=$((i+1)); done')[0] == '0'
    big = f'{root_of(s)}/big'
    assert sorted(os.listdir(big)) == sorted(f'f{i}' for i in range(n))
    before = s.daemon.memory_bytes()
    with contextlib.ExitStack() as held:
        for _ in range(64):
            fd = os.open(big, os.O_RDONLY | os.O_DIRECTORY)
            held.callback(os.close, fd)
        assert s.daemon.memory_bytes() - before < 30 << 20
        assert len(os.listdir(fd)) == n and len(os.listdir(fd)) == n  # from its beginning again


def test_a_directory_that_becomes_a_link_in_the_same_moment_leads_nowhere(s, workdir):
    os.makedirs(f'{workdir}/base/d')
    write(f'{workdir}/base/d/f', 'secret')
    job = Job(s, 'race').make().start(f'''
        mkdir -p /a/d; echo mine > /a/d/f; ln -s {workdir}/base /evil
        echo begun; while [ ! -e stop ]; do
            /bin/busybox mv /a /b; /bin/busybox mv /evil /a; /bin/busybox mv /a /evil; /bin/busybox mv /b /a
        done''')
    job.wait_output('begun')
    seen = set()
    end = time.monotonic() + 3
    while time.monotonic() < end:
        try:
            seen.add(read(f'{root_of(s)}/a/d/f'))
        except OSError:
            pass
    write(s / 'stop', '')
    assert job.exit() == '0'
    assert seen == {'mine\n'}


def test_a_file_with_a_lease_keeps_nobody(engine, s):
    """Who opens such a file waits for its holder, by default for 45 s."""
    assert run_job(s, 'mkdir /l && echo x > /l/f')[0] == '0'
    root = f'/proc/{engine.inspect(engine.containers()[0])["State"]["Pid"]}/root'
    fd = os.open(f'{root}/l/f', os.O_RDWR)
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # which nobody minds
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        begin = time.monotonic()
        assert open_errno(f'{root_of(s)}/l/f', os.O_RDONLY) == 'EAGAIN'
        assert time.monotonic() - begin < 5
    finally:
        os.close(fd)
    wait_for(lambda: open_errno(f'{root_of(s)}/l/f', os.O_RDONLY) is None)


def test_who_may_not_read_a_file_of_the_container_may_not_here_either(make, engine):
    d = make(engine, config=f'[user alice]\nuid = {ALICE_UID}\ngid = {ALICE_GID}\n', allow_other=True)
    s = d.session()
    assert run_job(s, 'echo secret > /f && chmod 600 /f && echo open > /g && mkdir -m 700 /d && '
                   'echo x > /d/f')[0] == '0'
    root = root_of(s)
    assert as_alice(lambda: read(f'{root}/g')) == 'open\n'
    assert as_alice(lambda: (errno_of(read, f'{root}/f'), errno_of(os.listdir, f'{root}/d'))) == ('EACCES', 'EACCES')
    assert run_job(s, '/bin/busybox cp /bin/busybox /su && /bin/busybox chmod 4755 /su', 'b')[0] == '0'
    assert stat.S_IMODE(os.stat(f'{root}/su').st_mode) == 0o555  # no rights come of it


def pids_place(name):
    """The daemon keeps the processes that lead to roots in a small table, by this."""
    h = 5381
    for c in name.encode():
        h = (h * 33 + c) % (1 << 32)
    return h % 1024


def process_with(pid):
    """Some process of the host that happens to get this number."""
    for _ in range(200):
        write('/proc/sys/kernel/ns_last_pid', str(pid - 1))
        proc = subprocess.Popen(['sleep', '1000'])
        if proc.pid == pid:
            return proc
        proc.kill()
        proc.wait()
    return pytest.skip('process numbers cannot be chosen here')


def test_a_process_that_takes_the_number_of_the_guest_does_not_lend_its_root(make, engine):
    s = make(engine, provision='jobs').session()
    assert run_job(s, 'true')[0] == '0'
    assert os.listdir(root_of(s))
    container = engine.containers()[0]
    pid = engine.inspect(container)['State']['Pid']
    engine('kill', container)
    wait_for(lambda: not os.path.exists(f'/proc/{pid}'))
    proc = process_with(pid)
    try:
        assert os.listdir(root_of(s)) == []
    finally:
        proc.kill()
        proc.wait()


def test_the_root_of_another_tenants_container_is_not_shown(make, engine):
    """Even where the two have one place in the table."""
    d = make(engine)
    a, b = d.session('alice/coder/s1'), d.session('bob/coder/s1')
    a.bind('one')
    b.bind(next(name for name in (f'two-{i}' for i in range(100000)) if pids_place(name) == pids_place('one')))
    assert run_job(a, 'echo a > /who')[0] == run_job(b, 'echo b > /who')[0] == '0'
    assert (read(f'{root_of(a)}/who'), read(f'{root_of(b)}/who')) == ('a\n', 'b\n')
    a.ctl('close')
    assert errno_of(read, f'{root_of(a)}/who') == 'ENOENT' and read(f'{root_of(b)}/who') == 'b\n'


# ── odd images ──────────────────────────────────────────────────────────────────────────────

def make_image(engine, name, files, *changes):
    """Of these files alone (path → busybox, or text), and with these words of a Dockerfile."""
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            os.makedirs(os.path.dirname(f'{root}{path}'), exist_ok=True)
            if text == BUSYBOX:
                shutil.copy(BUSYBOX, f'{root}{path}')
            else:
                write(f'{root}{path}', text)
        tar = subprocess.run(['tar', '-C', root, '-c', '.'], stdout=subprocess.PIPE, check=True).stdout
    words = [word for change in changes for word in ('--change', change)]
    engine('import', *words, '-', name, stdin=tar)


def run_argv(s, *words, name='j', **settings):
    j = Job(s, name).make(**settings)
    write(j / 'argv', json.dumps(words))
    return j.exit(), j.text('stdout'), j.text('stderr')


def test_an_image_of_one_program_and_nothing_else_runs_it(make, engine):
    """FROM scratch: no shell, no /etc, no /tmp, no command of its own."""
    make_image(engine, 'scratch:1', {'/busybox': BUSYBOX})
    s = make(engine, image='scratch:1').session()
    write(s / 'f', 'from outside\n')
    assert run_argv(s, '/busybox', 'cat', 'f') == ('0', 'from outside\n', '')
    assert run_argv(s, '/busybox', 'sh', '-c', 'echo inside > g; echo $PWD', name='sh') == ('0', '/workspace\n', '')
    assert read(s / 'g') == 'inside\n'
    code, _, err = run_job(s, 'echo x', 'line')
    assert code not in ('0', '') and '/bin/sh' in code + err
    assert sorted(set(os.listdir(root_of(s))) - {'.dockerenv', 'etc'}) == ['busybox']


def test_an_image_without_a_shell_and_accounts_runs_programs_as_any_number(make, engine):
    """As distroless ones are: a user by number, an entry point that must not run."""
    make_image(engine, 'bare:1', {'/app/busybox': BUSYBOX, '/etc/os-release': 'ID=bare\n'}, 'USER 65532:65532',
               'ENTRYPOINT ["/app/busybox", "false"]', 'CMD ["never"]', 'ENV PATH=/app', 'WORKDIR /app')
    s = make(engine, image='bare:1', config='[sandbox]\nuser = 65532:65532\n').session()
    write(s / 'f', 'from outside\n')
    assert run_argv(s, 'busybox', 'id') == ('0', 'uid=65532 gid=65532\n', '')
    assert run_argv(s, 'busybox', 'cat', 'f', name='cat') == ('0', 'from outside\n', '')
    assert run_argv(s, 'busybox', 'sh', '-c', 'echo inside > g', name='sh')[0] == '0'
    write(s / 'g', 'outside again\n')
    assert run_argv(s, 'busybox', 'cat', 'g', name='again') == ('0', 'outside again\n', '')
    begin = time.monotonic()
    s.ctl('close')
    assert time.monotonic() - begin < 5 and engine.containers() == []


def test_an_images_own_entry_point_volume_and_health_check_do_nothing(make, engine):
    make_image(engine, 'loud:1', {'/bin/busybox': BUSYBOX, '/bin/sh': BUSYBOX},
               'ENTRYPOINT ["/bin/busybox", "touch", "/workspace/started"]', 'VOLUME /workspace /data',
               'HEALTHCHECK --interval=1s CMD ["/bin/busybox", "touch", "/workspace/checked"]')
    s = make(engine, image='loud:1').session()
    write(s / 'f', 'x')
    assert output(s, 'echo y > g; /bin/busybox ls') == 'f\ng\n'
    volumes = engine('volume', 'ls', '-q').split()
    assert len(volumes) == 1
    s.ctl('close')
    assert engine('volume', 'ls', '-q').split() == []


def test_a_read_only_root_changes_nothing_but_that(make, engine):
    s = make(engine, backend='read_only = on\nmounts = type=tmpfs,target=/tmp').session()
    write(s / 'f', 'from outside\n')
    assert output(s, 'cat f; echo inside > g; echo x > /tmp/x') == 'from outside\n'
    code, _, err = run_job(s, 'echo x > /x', 'root')
    assert code != '0' and 'ead-only' in err
    assert read(f'{root_of(s)}/etc/passwd').startswith('root:')
    s.ctl('close')
    assert output(s, 'cat g', 'later') == 'inside\n'


# ── shifted ids ─────────────────────────────────────────────────────────────────────────────

# An engine whose containers' root is another user of the host. The directory is one through which that user can pass.
SHIFTED = '''
    cd {top} && chmod 711 . && echo daemon:200000:65536 > ids && mount --make-rprivate / &&
    mount --bind ids /etc/subuid && mount --bind ids /etc/subgid && exec "$@"'''


@pytest.fixture(scope='module', name='shifted')
def _shifted():
    if not os.path.exists('/etc/subuid') or not os.path.exists('/etc/subgid'):
        pytest.skip('no /etc/subuid here')
    if 'ok' not in run('unshare', '-U', 'echo', 'ok', check=False):
        pytest.skip('no user namespaces here, as in a chroot')
    with running_engine(before=['unshare', '-m', 'sh', '-c', SHIFTED, 'sh'], more=['--userns-remap=daemon']) as engine:
        yield engine


def owners(path):
    return {os.lstat(f'{where}/{name}').st_uid for where, dirs, files in os.walk(path) for name in dirs + files}


def test_with_shifted_ids_both_sides_change_each_others_files(make, shifted):
    d = make(shifted, config=f'[user alice]\nuid = {ALICE_UID}\n', allow_other=True, provision='jobs')
    s = d.session()
    as_alice(lambda: (os.makedirs(s / 'a/b'), write(s / 'a/b/f', 'outside\n'), os.symlink('/etc/shadow', s / 'l')))
    for i in range(1, 700):  # deeper than a descriptor each would do for
        os.mkdir(f'{d.basedir}/alice/coder/' + 'd/' * i)
    assert output(s, 'cat a/b/f; echo inside >> a/b/f; mkdir -m 700 c; echo x > c/x; /bin/busybox rm l') == 'outside\n'
    assert owners(f'{d.basedir}/alice/coder') == {200000}
    assert os.stat('/etc/shadow').st_uid == 0
    assert as_alice(lambda: (read(s / 'a/b/f'), read(s / 'c/x'))) == ('outside\ninside\n', 'x\n')
    as_alice(lambda: (write(s / 'c/x', 'again\n'), write(s / 'c/y', 'new\n'), os.rename(s / 'a/b', s / 'c/b')))
    assert output(s, 'cat c/x c/y; echo z > c/y; id -u', 'b') == 'again\nnew\n0\n'
    assert 'worker:x:1234' in read(f'{root_of(s)}/etc/passwd')


def test_with_shifted_ids_a_user_by_number_is_shifted_too(make, shifted):
    d = make(shifted, config='[sandbox]\nuser = 1234:1234\n')
    s = d.session()
    write(s / 'f', 'outside\n')
    assert output(s, 'id -u; cat f; echo inside > f; echo x > g') == '1234\noutside\n'
    assert owners(f'{d.basedir}/alice/coder') == {201234}
    d.restart()  # which knows of no shift until it has asked
    write(s / 'h', 'outside\n')
    assert output(s, 'echo inside > h; cat f h', 'b') == 'inside\ninside\n'


# ── the daemon in a container ───────────────────────────────────────────────────────────────

DEPLOY = f'{CHECKOUT}/docs/deploy'
DAEMON_IMAGE = 'wsmfs:test'


def entrypoint():
    return next(line for line in read(f'{DEPLOY}/Dockerfile').splitlines() if line.startswith('ENTRYPOINT'))


def libraries_of(program):
    """What the dynamic linker would load, and itself."""
    return re.findall(r'(/\S+) \(0x', run('ldd', program))


def make_daemon_image(engine):
    """As the Dockerfile makes it, of the program under test and what it is linked to here."""
    with tempfile.TemporaryDirectory() as root:
        files = {WSMFS: 'usr/local/bin/wsmfs', f'{BUILD}/backends/guest/wsm-guest': 'usr/local/libexec/wsmfs/wsm-guest',
                 f'{BUILD}/backends/docker/docker.so': 'usr/local/libexec/wsmfs/docker.so'}
        for program in ['mount', 'umount']:  # of which libfuse makes use
            files[shutil.which(program)] = f'bin/{program}'
        files.update({library: library[1:] for program in [*files][2:] + [WSMFS] for library in libraries_of(program)})
        for source, target in files.items():
            os.makedirs(os.path.dirname(f'{root}/{target}'), exist_ok=True)
            shutil.copy(source, f'{root}/{target}')
        tar = subprocess.run(['tar', '-C', root, '-c', '.'], stdout=subprocess.PIPE, check=True).stdout
    engine('import', '--change', entrypoint(), '-', DAEMON_IMAGE, stdin=tar)


@pytest.fixture(name='shared_mount')
def _shared_mount(workdir):
    """A directory from which mounts come to us, as they come from / where systemd runs."""
    path = f'{workdir}/mnt'
    os.mkdir(path)
    run('mount', '-t', 'tmpfs', 'none', path)
    run('mount', '--make-shared', path)
    os.mkdir(f'{path}/wsm')
    yield path
    for point in [*(point for point, _ in watchdog.mounts_below(path)), path]:
        run('umount', '-l', point, check=False)


def read_compose(path, env):
    """The part of YAML that the file uses: maps, lists and words, told by their indentation."""
    def value(text):
        return re.sub(r'\$\{(\w+):-([^}]*)\}', lambda m: env.get(m[1], m[2]), text)

    def block(lines, depth):
        found = None
        while lines and lines[0][0] >= depth:
            here, text = lines.pop(0)
            assert here == depth, text
            if text.startswith('- '):
                found = found or []
                if re.match(r'- \w+: ', text):
                    lines.insert(0, (depth + 2, text[2:]))
                    found.append(block(lines, depth + 2))
                else:
                    found.append(value(text[2:]))
            else:
                found = found or {}
                key, _, rest = text.partition(':')
                found[key] = value(rest.strip()) if rest.strip() else block(lines, lines[0][0])
        return found
    lines = [line for line in read(path).splitlines() if line.strip() and not line.strip().startswith('#')]
    return block([(len(line) - len(line.lstrip()), line.strip()) for line in lines], 0)


def run_words(service):
    """The words of `docker run` that say what a service says; a key that is not known here is an error."""
    def mount_words(m):
        m = dict(m)
        more = [f'bind-propagation={m.pop("bind")["propagation"]}'] if 'bind' in m else []
        return ['--mount', ','.join([f'{key}={word}' for key, word in m.items()] + more)]
    each = {'network_mode': '--network', 'pid': '--pid', 'cap_add': '--cap-add', 'security_opt': '--security-opt',
            'devices': '--device', 'stop_grace_period': '--stop-timeout', 'restart': '--restart'}
    words = []
    for key, what in service.items():
        for one in what if isinstance(what, list) else [what]:
            if key == 'volumes':
                words += mount_words(one)
            elif key not in ('image', 'command'):
                words += [each[key], one.rstrip('s') if key == 'stop_grace_period' else one]
    return words + [service['image'], *service['command']]


def has_compose():
    return shutil.which('docker-compose') and subprocess.run(['docker-compose', 'version'], capture_output=True,
                                                             check=False).returncode == 0


@pytest.fixture(name='deployed', params=['run', 'compose'])
def _deployed(request, workdir, engine, shared_mount):
    """What the compose file says, as the compose command makes it or as `docker run` would; its mount."""
    make_daemon_image(engine)
    os.makedirs(f'{workdir}/files')
    env = {'WSMFS_IMAGE': DAEMON_IMAGE, 'WSMFS_SOURCE': 'base:1', 'WSMFS_DIR': f'{workdir}/files',
           'WSMFS_MNT': shared_mount, 'DOCKER_SOCKET': engine.socket}
    compose = ['docker-compose', '-f', f'{DEPLOY}/compose.yaml', '--project-name', 'wsmfs-test']
    if request.param == 'compose':
        if not has_compose():
            pytest.skip('no docker-compose here')
        run(*compose, 'up', '-d', '--no-build', env=dict(os.environ, DOCKER_HOST=engine.host, **env))
    else:
        engine('run', '-d', *run_words(read_compose(f'{DEPLOY}/compose.yaml', env)['services']['wsmfs']))
    container = engine.containers()[0]
    mnt = f'{shared_mount}/wsm'
    try:
        wait_for(lambda: os.path.exists(f'{mnt}/.wsm/status'), 30, lambda: engine('logs', container))
        yield Deployed(engine, container, mnt)
    finally:
        print(subprocess.run(['docker', '-H', engine.host, 'logs', container], capture_output=True, check=False))
        engine('stop', container, check=False)
        for c in engine.containers():
            engine('rm', '-f', c, check=False)


class Deployed:
    """As far as a Session needs a daemon."""

    def __init__(self, engine, container, mnt):
        self.engine, self.container, self.mnt = engine, container, mnt

    def session(self, names='alice/coder/s1'):
        return Session(self, names)


def test_the_daemon_in_a_container_gives_what_one_on_the_host_gives(deployed, engine, workdir):
    s = deployed.session()
    write(s / 'f', 'from outside\n')
    assert output(s, 'cat f; echo inside > g') == 'from outside\n'
    assert read(s / 'g') == 'inside\n'
    assert read(f'{workdir}/files/workspaces/alice/coder/g') == 'inside\n'
    assert 'worker:x:1234' in read(f'{root_of(s)}/etc/passwd')
    assert len(engine.containers()) == 2
    engine('stop', deployed.container)
    assert engine.containers() == [deployed.container]
    assert not mountinfo(deployed.mnt)


def test_the_daemon_in_a_container_may_be_killed_and_started_again(deployed, engine):
    s = deployed.session()
    assert output(s, 'echo one > f; echo ended') == 'ended\n'
    engine('kill', deployed.container)
    assert errno_of(os.listdir, deployed.mnt) == 'ENOTCONN'
    engine('start', deployed.container)
    wait_for(lambda: not errno_of(os.stat, f'{deployed.mnt}/.wsm/status'), 30)
    assert output(s, 'cat f', 'again') == 'one\n'


def test_the_dockerfile_installs_what_the_program_is_linked_to():
    """By the names of packages here; a release that has renamed them for 64-bit times means the same ones."""
    def plain(name):
        return re.sub(r't64$|-\d+$|\d+$', '', re.sub('t64$', '', name))
    if not shutil.which('dpkg') or SANITIZER != 'none':
        pytest.skip('no dpkg here, or a program that is linked to more')
    programs = [WSMFS, f'{BUILD}/backends/docker/docker.so']
    needed = {name for program in programs for name in re.findall(r'NEEDED.*\[(\S+)\]', run('readelf', '-d', program))}
    there = {os.path.basename(path): os.path.realpath(path) for program in programs for path in libraries_of(program)}
    listed = {plain(word) for word in read(f'{DEPLOY}/Dockerfile').split()}
    assert {'libcurl.so.4', 'libarchive.so.13', 'libsqlite3.so.0'} <= needed
    for path in [there[name] for name in needed]:
        package = sh(f'dpkg -S {path} /usr{path} 2>/dev/null || true').split(':')[0]
        assert not package or package in ('libc6', 'libgcc-s1') or plain(package) in listed, package
