# SPDX-License-Identifier: Apache-2.0
"""What root in a container tries against the host, the daemon and other tenants, and what is seen of it from there."""

import contextlib
import os
import socket
import stat
import textwrap
import time

import pytest

from harness import BOB_GID, BOB_UID, HOST_BIND, HOST_IMAGE, SANITIZER, SLOWNESS, as_user, errno_of, open_errno, read, wait_for, write
from jobs import Job, job, output
from jobs import run as run_job

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

UID, OTHER_UID = 1001, 1002
SECRET = 'a secret of the other tenant'
USERS = f'[user alice]\nuid = {UID}\n[user bob]\nuid = {OTHER_UID}\n'


class Place:
    """A mount with two tenants, each with a container; in `s` somebody attacks, `other` is the victim's."""

    def __init__(self, docker, sandbox='', **more):
        self.daemon = docker(image=HOST_IMAGE, config=f'{USERS}[sandbox]\nbind = {HOST_BIND}\n{sandbox}', allow_other=True,
                             **{'grace': 1, **more})
        self.s, self.other = self.daemon.session('alice/coder/s1'), self.daemon.session('bob/coder/s1')
        write(self.other / 'secret', SECRET)
        self.count = 0

    def run(self, script, session=None, timeout=60, **settings):
        """How it ended, and what it printed on both."""
        self.count += 1
        j = job(session or self.s, f'j{self.count}', **settings).start(textwrap.dedent(script))
        return j.exit(timeout), j.text('log')

    def out(self, script, **more):
        code, text = self.run(script, **more)
        assert code == '0', (code, text)
        return text

    def python(self, program, **more):
        return self.out("python3 - <<'END-OF-PROGRAM'\n" + textwrap.dedent(program) + '\nEND-OF-PROGRAM\n', **more)

    def refused(self, *lines):
        """None of these succeeds."""
        for line in lines:
            code, text = self.run(line)
            assert code != '0' and not code.startswith('error'), (line, code, text)
            assert SECRET not in text, line

    def run_dir(self, session=None):
        return f'{self.daemon.basedir}/.wsmfs/run/{(session or self.s).id()}'


@pytest.fixture(name='place')
def _place(docker):
    return Place(docker)


# ── what a container has ────────────────────────────────────────────────────────────────────

def test_a_container_has_few_rights_and_no_network(place):
    status = dict(line.split(':\t') for line in place.out('cat /proc/self/status').splitlines() if ':\t' in line)
    # CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID: linux/capability.h
    allowed = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7
    assert int(status['CapEff'], 16) == int(status['CapPrm'], 16) == int(status['CapBnd'], 16) == allowed
    assert int(status['CapInh'], 16) in (0, allowed) and int(status['CapAmb'], 16) == 0
    assert status['NoNewPrivs'] == '1'
    assert place.out('ls /sys/class/net') == 'lo\n'
    assert place.out('wc -l < /proc/net/route').strip() in ('0', '1')
    assert '4096' in place.out('cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max 2>/dev/null; true')


def test_a_job_of_another_user_has_no_rights_and_gets_none(docker):
    place = Place(docker, 'user = worker\n')
    status = dict(line.split(':\t') for line in place.out('cat /proc/self/status').splitlines() if ':\t' in line)
    assert int(status['CapEff'], 16) == int(status['CapPrm'], 16) == 0
    place.out('cp /usr/bin/id id; chown 0 id; chmod 4755 id', user='root')
    assert place.out('./id -u') == '1234\n'


def test_what_reaches_out_of_a_container_is_refused(place):
    place.refused('mount -t tmpfs t /tmp', 'mount -o bind /workspace /tmp', 'mount -o remount,rw /usr', 'touch /usr/x',
                  'unshare -m true', 'unshare -U true', 'nsenter -t 1 -m true', 'mknod d b 8 0', 'mknod d c 1 3',
                  'echo 1 > /proc/sys/kernel/panic', 'echo c > /proc/sysrq-trigger', 'cat /proc/kcore', 'dmesg -C',
                  'swapoff -a && false || cat /dev/sda /dev/vda', 'hostname x', 'date -s 2001-01-01',
                  'ip link add type dummy && false || chroot / mount -t proc p /proc')


# ── tenants ─────────────────────────────────────────────────────────────────────────────────

def test_tenants_see_nothing_of_each_other_from_inside(place):
    marker = 'sleep 98765'
    victim = job(place.other, 'victim').start(f'''
        {marker} & exec python3 -c "
        import socket, time
        tcp = socket.create_server(('127.0.0.1', 7777))
        unix = socket.socket(socket.AF_UNIX); unix.bind(chr(0) + 'wsm-victim'); unix.listen()
        open('/tmp/secret', 'w').write('{SECRET}'); print('up', flush=True); time.sleep(1000)"'''.replace('\n        ', '\n'))
    victim.wait_output('up')
    assert marker.replace(' ', '\0') not in place.out('cat /proc/[0-9]*/cmdline')
    assert place.out('cat /proc/net/unix').count('wsm-victim') == 0
    assert place.out(f'grep -rsl "{SECRET}" /workspace /tmp /.wsm /etc /home /root /var /dev/shm; true') == ''
    assert place.out('ls /.wsm /.wsm/run; ls -A /workspace /workspace/..').count(place.other.id()) == 0
    place.refused('python3 -c "import socket; socket.create_connection((\'127.0.0.1\', 7777), 5)"',
                  'python3 -c "import socket; s = socket.socket(socket.AF_UNIX); s.connect(chr(0) + \'wsm-victim\')"',
                  'cat /workspace/../../bob/coder/secret', 'cat /proc/1/root/workspace/secret', 'ls /workspace/../.wsmfs',
                  f'ls {place.daemon.basedir}', f'ls {place.daemon.mnt}', f'ls {place.daemon.top}/state')
    victim.ctl('kill')
    assert victim.exit() == 'signal 15'


def test_tenants_see_nothing_of_each_other_from_outside(place):
    place.out('umask 0; echo x > f')

    def look():
        found = [errno_of(os.listdir, place.other.path), errno_of(read, place.other / 'secret')]
        found += [errno_of(os.listdir, f'{place.daemon.mnt}/.wsm/sessions/bob'), errno_of(os.listdir, place.other.inner)]
        found += [errno_of(os.stat, f'{place.daemon.basedir}/{name}') for name in ['bob/coder', 'alice/coder', '.wsmfs/run']]
        return found
    assert as_user(UID, UID, look) == ['EACCES'] * 7
    assert as_user(UID, UID, lambda: read(place.s / 'f')) == 'x\n'


def test_planted_links_lead_nowhere(place):
    place.out(f'''
        ln -s {place.daemon.basedir}/bob/coder/secret absolute; ln -s ../../bob/coder/secret relative
        ln -s ../../../../../../../../../../../../etc/shadow up; ln -s /proc/1/root proc; ln -s / all
        ln -s {place.daemon.mnt}/bob/coder/s1/secret mount; mkdir d; ln -s ../../../bob d/up''')

    def look():
        for name in ['absolute', 'relative', 'up', 'mount', 'proc/etc/shadow', 'all/etc/shadow', 'd/up/coder/secret']:
            with contextlib.suppress(OSError):
                text = read(place.s / name)
                assert SECRET not in text and not text.startswith('root:'), name
        return os.readlink(place.s / 'up').startswith('/')
    assert look() is False
    assert as_user(UID, UID, look) is False


def test_hard_links_reach_only_the_own_files(place):
    place.out('echo mine > f; ln f g')
    place.refused('ln /.wsm/wsm-guest guest', 'ln /usr/bin/id id', 'ln /.wsm/run/guest.sock sock', 'ln /etc/hostname host',
                  'ln f /.wsm/run/f', 'ln /workspace/f /tmp/f')
    assert os.stat(place.s / 'f').st_nlink == 2


def test_devices_made_inside_open_nothing_on_either_side(docker):
    place = Place(docker, backend='cap_add = MKNOD\n')
    disk = os.stat('/').st_dev
    place.out(f'mknod disk b {os.major(disk)} {os.minor(disk)}; mknod mem c 1 1; mknod null c 1 3; chmod 666 disk mem null')
    place.refused('head -c 1 disk', 'head -c 1 mem')
    for name in ['disk', 'mem', 'null']:
        assert stat.S_IFMT(os.lstat(place.s / name).st_mode) in (stat.S_IFBLK, stat.S_IFCHR)
        assert open_errno(place.s / name, os.O_RDONLY) == 'EACCES'
        assert as_user(UID, UID, lambda n=name: open_errno(place.s / n, os.O_RDWR)) == 'EACCES'
        assert as_user(BOB_UID, BOB_GID, lambda n=name: errno_of(os.stat, f'{place.daemon.basedir}/alice/coder/{n}')) == 'EACCES'


# ── the guest ───────────────────────────────────────────────────────────────────────────────

def test_root_inside_can_do_nothing_to_the_guest(engine, place):
    place.out('true')
    program, = (path for path in [f'{place.daemon.basedir}/.wsmfs/guest'] for path in [f'{path}/{n}' for n in os.listdir(path)])
    with open(program, 'rb') as f:
        before = f.read()
    place.refused('echo x > /.wsm/wsm-guest', 'echo x >> /.wsm/wsm-guest', 'rm /.wsm/wsm-guest', 'mv /.wsm/wsm-guest /tmp/g',
                  'chmod 777 /.wsm/wsm-guest', 'chown 1 /.wsm/wsm-guest', 'cp /usr/bin/true /.wsm/wsm-guest', 'rm -r /.wsm',
                  'mv /usr/bin/true /.wsm/wsm-guest', 'mount -o bind /usr/bin/true /.wsm/wsm-guest', 'echo x > /proc/1/exe',
                  'truncate -s 0 /proc/1/exe', 'cat /proc/1/mem', 'cat /proc/1/environ', 'ls -l /proc/1/fd',
                  'touch -d @1 /.wsm/wsm-guest', 'umount /.wsm/wsm-guest')
    place.python('''
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.ptrace(16, 1, 0, 0) == -1  # PTRACE_ATTACH
        assert libc.syscall(310, 1, None, 0, None, 0, 0) in (-1, 0)  # process_vm_readv of nothing
        try:
            os.stat('/proc/1/root/.')
            os.listdir('/proc/1/map_files')
            raise SystemExit('the guest can be looked into')
        except PermissionError:
            pass
        ''')
    place.out('for s in 1 2 3 9 15 19 30; do kill -$s 1; done')
    container, = engine('ps', '-q', '--filter', f'name={place.s.id()}').split()
    assert place.out('echo still here') == 'still here\n'
    assert engine.inspect(container)['State']['Running']
    with open(program, 'rb') as f:
        assert f.read() == before


@pytest.mark.parametrize('user', ['', 'user = worker\n'])
def test_a_time_out_ends_a_tree_that_ignores_term(docker, user):
    place = Place(docker, user, grace=1)
    place.out('true')
    begin = time.monotonic()
    j = job(place.s, 'tree', timeout='1').start(
        "trap '' TERM; echo begun; (trap '' TERM; exec sleep 54321) & setsid sh -c \"trap '' TERM; sleep 54321; sleep 54321\" & "
        'setsid setsid sleep 54321 & wait; sleep 54321')
    assert j.exit().startswith('signal ')
    assert time.monotonic() - begin < 1 + 1 + 1 * SLOWNESS + 2
    assert j.status()['timed_out'] is True
    assert j.out() == 'begun\n'
    assert '54321' not in place.out('cat /proc/[0-9]*/cmdline | tr "\\0" " "; true', user='root')


# ── the place of the socket ─────────────────────────────────────────────────────────────────

def loses_its_guest(place, script):
    """Something else lies in the place of the guest's socket when the daemon comes to look for it."""
    place.out('cd /.wsm/run; rm -rf guest.sock; ' + script)
    place.daemon.kill()
    place.daemon.start()


def other_works(place):
    j = Job(place.other, f'other{time.monotonic_ns()}').make().start('cat secret')
    assert (j.exit(60), j.out()) == ('0', SECRET)


def heals(place, engine, lost, how='rm'):
    """A close, or the end of the container, gives a new one. A job that was asked for meanwhile runs or says why not."""
    if how == 'close':
        place.s.ctl('close')
    else:
        engine('rm', '-f', *engine('ps', '-q', '--filter', f'name={place.s.id()}').split())
    assert lost.exit() == '0' or lost.exit().startswith('error ')
    assert SECRET not in lost.text('log')
    assert place.out('echo again') == 'again\n'
    assert os.listdir(place.run_dir()) == ['guest.sock']
    other_works(place)


@pytest.mark.parametrize('target', ['host', 'tenant', 'relative'])
def test_a_planted_link_connects_the_daemon_to_nobody_else(engine, place, target):
    other_works(place)
    path = {'host': f'{place.daemon.top}/host.sock', 'tenant': f'{place.run_dir(place.other)}/guest.sock',
            'relative': f'../{place.other.id()}/guest.sock'}[target]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f'{place.daemon.top}/host.sock')
        listener.listen()
        listener.setblocking(False)
        place.daemon.expect('guest')
        loses_its_guest(place, f'ln -s {path} guest.sock')
        lost = job(place.s, 'lost').start('cat secret; true')
        other_works(place)
        heals(place, engine, lost)
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize('how,what', [('close', 'true'), ('rm', 'mkfifo guest.sock'), ('rm', 'truncate -s 1T guest.sock'),
                                      ('rm', 'touch $(seq 3000) guest.sock; chmod 0 .')])
def test_whatever_lies_in_the_place_of_the_socket_holds_up_nobody(engine, place, how, what):
    place.daemon.expect('guest')
    loses_its_guest(place, what)
    lost = job(place.s, 'lost').start('echo lost')
    begin = time.monotonic()
    other_works(place)
    write(place.s / 'f', 'x')
    assert read(place.s / 'f') == 'x'
    assert time.monotonic() - begin < 3 * SLOWNESS
    heals(place, engine, lost, how)
    assert time.monotonic() - begin < 20 + 3 * SLOWNESS


ROGUE = '''
import os, signal, socket, time
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
if os.fork():
    while not os.path.exists('/tmp/rogue'): time.sleep(0.01)
    raise SystemExit
os.setsid()
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM if KIND == 'datagrams' else socket.SOCK_STREAM)
s.bind('/.wsm/run/guest.sock')
if KIND != 'datagrams': s.listen(0 if KIND == 'no answer' else 16)
open('/tmp/rogue', 'w')
kept = []
while KIND in ('datagrams', 'no answer'): time.sleep(1)
while True:
    c = s.accept()[0]
    try:
        if KIND == 'silence': kept.append(c)
        elif KIND == 'zeros': c.sendall(bytes(1 << 22))
        elif KIND == 'length': c.sendall(bytes([255]) * 64); kept.append(c)
        elif KIND == 'echo':
            while (b := c.recv(65536)): c.sendall(b)
        elif KIND == 'noise':
            while True: c.sendall(os.urandom(65536))
    except OSError: pass
'''


@pytest.mark.parametrize('kind', ['datagrams', 'no answer', 'silence', 'zeros', 'echo', 'noise', 'length', 'end'])
def test_a_rogue_in_the_place_of_the_guest_spoils_its_own_jobs_alone(engine, place, kind):
    d = place.daemon
    d.expect('guest|protocol')
    write(place.s / 'rogue.py', ROGUE.replace('KIND', repr(kind)))
    loses_its_guest(place, 'python3 /workspace/rogue.py')
    lost = job(place.s, 'lost').start('echo lost')
    other_works(place)
    before, begin = d.memory_bytes(), time.monotonic()
    while time.monotonic() - begin < 1:  # so that it meets the rogue some times
        other_works(place)
    assert SANITIZER != 'none' or d.memory_bytes() - before < 16 << 20
    heals(place, engine, lost, 'close' if kind == 'no answer' else 'rm')
    assert time.monotonic() - begin < 20 + 3 * SLOWNESS
