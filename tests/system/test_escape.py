# SPDX-License-Identifier: Apache-2.0
"""What a job on the mount tries in order to get out: as root's own mount, as a tenant of root's mount and as
an ordinary user's mount. test_sandbox.py tries the sandbox by itself, and more of it."""

import contextlib
import os
import re
import socket
import subprocess
import textwrap

import pytest

import harness
from harness import BOB_UID, as_bob, read, wait_for, write
from jobs import Job, ordinary
from sandboxes import TENANT_ID, processes_with

pytestmark = [pytest.mark.root]

MARKER = 'WSM_TEST_MARKER_OF_THE_DAEMON'
SECRET = 'a secret of the other tenant'


class Place:
    """A mount with two tenants; in the session `s` an attacker runs jobs, `other` belongs to the victim."""

    def __init__(self, daemon, as_owner):
        self.daemon = daemon
        self.as_owner = as_owner
        self.s = daemon.session('alice/coder/s1')
        self.other = daemon.session('bob/coder/s1')
        self.count = 0

    def run(self, script, session=None, timeout=60):
        """How it ended, and what it printed on both."""
        self.count += 1
        name = f'j{self.count}'
        session = session or self.s

        def go():
            j = Job(session, name).make().start(textwrap.dedent(script))
            return read(j / 'exit').rstrip('\n'), read(j / 'log')
        return self.as_owner(go, timeout)

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
            assert code not in ('0',) and not code.startswith('error'), (line, code, text)
            assert SECRET not in text, line

    def path(self, session=None):
        """Of the workspace on the disk."""
        return f'{self.daemon.basedir}/{(session or self.s).names.rsplit("/", 1)[0]}'


def itself(function, timeout=60):  # pylint: disable=unused-argument
    return function()


@pytest.fixture(params=['roots-own', 'roots-tenant', 'ordinary-user'])
def kind(request):
    return request.param


@pytest.fixture
def place(kind, mount, monkeypatch):
    monkeypatch.setenv(MARKER, 'secret')
    with contextlib.ExitStack() as stack:
        if kind == 'ordinary-user':
            d = stack.enter_context(ordinary(mount)).start()
        elif kind == 'roots-tenant':
            d = mount(allow_other=True, config=f'[user alice]\nuid = {TENANT_ID}\n[user bob]\nuid = {TENANT_ID + 9}\n')
        else:
            d = mount()
        p = Place(d, as_bob if kind == 'ordinary-user' else itself)

        def prepare():
            p.other.use()
            write(p.other / 'secret', SECRET)
            p.s.use()
        p.as_owner(prepare)
        yield p
        d.end_children()
        if kind == 'ordinary-user':
            d.stop()


# ── files ───────────────────────────────────────────────────────────────────────────────────

def test_other_tenants_files_and_the_daemons_places_are_not_there(place):
    d = place.daemon
    everywhere = ['/root', '/home', '/etc/shadow', '/var/lib', '/sys', '/mnt', '/srv', '/opt', d.basedir, d.top, d.mnt,
                  f'{d.top}/state', f'{d.top}/state/sandbox', f'{place.path(place.other)}', f'{d.mnt}/bob/coder/s1',
                  '/workspace/../bob', '/workspace/../../bob', '/proc/1/root', '/proc/1/cwd/../bob']
    for path in everywhere:
        assert place.run(f'ls -a {path}/ || cat {path}')[0] != '0', path
    assert place.out('find / -path /proc -prune -o -path /usr -prune -o -name secret -print 2>/dev/null; true') == ''
    assert place.out(f'grep -rsl "{SECRET}" /workspace /etc /run /tmp /var /dev/shm; true') == ''


def test_the_mount_is_no_way_in(place):
    """What an agent may reach by its own files: `.wsm` of its session is not among them."""
    place.refused('ls /workspace/.wsm/', 'cat /workspace/.wsm/state', 'ls /workspace/.wsm/root/')
    assert '.wsm' not in place.out('ls -A /workspace')


@pytest.mark.parametrize('target', [
    '/etc/shadow', '{base}/bob/coder/secret', '../../bob/coder/secret', '../../../../../../../../etc/shadow',
    '/proc/self/root/etc/shadow', '/proc/1/root/etc/shadow', '{mnt}/bob/coder/s1/secret', '{state}'])
def test_planted_links_lead_nobody_out(place, target):
    """Neither the job itself, nor whoever reads the mount, nor the daemon."""
    d = place.daemon
    text = target.format(base=d.basedir, mnt=d.mnt, state=f'{d.top}/state')
    place.out(f'ln -s "{text}" planted; mkdir -p deep/er; ln -s "../../{text}" deep/er/planted; ln -s planted again')
    place.refused('cat planted', 'cat again', 'cat deep/er/planted')

    def look():
        found = []
        for name in ('planted', 'again', 'deep/er/planted'):
            os.lstat(place.s / name)
            shown = os.readlink(place.s / name)
            # what is not the workspace's is in the sandbox's own root
            assert name == 'again' or '.wsm/root/' in shown or not shown.startswith('/'), shown
            with contextlib.suppress(OSError):
                found.append(read(place.s / name))
            with contextlib.suppress(OSError):
                found.append(str(os.listdir(place.s / name)))
        return found
    for text in place.as_owner(look):
        assert SECRET not in text and 'root:' not in text and 'sandbox' not in text, text


def test_planted_fifos_sockets_and_odd_names_hold_nobody_up(place):
    place.python('''
        import os, socket
        os.mkfifo('fifo'); os.mkdir('d'); os.mkfifo('d/fifo'); os.symlink('fifo', 'to-fifo')
        socket.socket(socket.AF_UNIX).bind('sock')
        for name in (b'a\\nb', b'\\xff\\xfe', b'-rf', b' ', b'x' * 255):
            os.mkdir(name)
    ''')

    def walk():
        n = 0
        for where, dirs, files in os.walk(os.fsencode(place.s.path)):
            for name in dirs + files:
                os.lstat(os.path.join(where, name))
                n += 1
        return n
    assert place.as_owner(walk) == 10
    place.out('true')
    place.as_owner(lambda: place.s.ctl('close force'))
    place.out('ls d')


def test_directories_that_are_replaced_while_the_daemon_walks_them_lead_nobody_out(place):
    """A job swaps a directory for a link to the outside and back as fast as it can; whoever reads the mount
    meanwhile reads the workspace's own file or nothing."""
    out = f'{place.path(place.other)}'
    place.out('mkdir -p a/b; echo own > a/b/secret')
    place.count += 1

    def begin():
        j = Job(place.s, f'j{place.count}').make()
        j.start(f'''python3 -c "
import os
out = '{out}'
while not os.path.exists('stop'):
    for target in (out, '../../../bob/coder', '/workspace/../bob/coder'):
        os.rename('a/b', 'a/c'); os.symlink(target, 'a/b'); os.unlink('a/b'); os.rename('a/c', 'a/b')
    os.rename('a', 'z'); os.symlink(out, 'a'); os.unlink('a'); os.rename('z', 'a')
"''')
        return wait_for(lambda: read(j / 'status').find('running') > 0)

    def read_on():
        seen = {'own': 0, 'nothing': 0}
        while seen['own'] < 50 or seen['nothing'] < 20:
            try:
                text = read(place.s / 'a/b/secret')
                assert text == 'own\n', text
                seen['own'] += 1
            except OSError:
                seen['nothing'] += 1
            if sum(seen.values()) > 20000:
                break
        for name in ('a/b/new', 'a/new'):
            with contextlib.suppress(OSError):
                write(place.s / name, 'x')
        write(place.s / 'stop', '')
        return seen

    def all_of_it():
        begin()
        return read_on()
    seen = place.as_owner(all_of_it, 100)
    assert seen['own'] > 0
    assert os.listdir(out) == ['secret']


# ── sockets, processes ──────────────────────────────────────────────────────────────────────

def test_the_hosts_sockets_are_out_of_reach_by_path_and_by_abstract_name(place):
    name = f'wsm-escape-{os.getpid()}'
    paths = [f'/tmp/{name}', f'/run/{name}', f'{place.daemon.top}/{name}']
    with contextlib.ExitStack() as stack:
        for address in [*paths, f'\0{name}']:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(address)
            listener.listen()
            if address[0] == '/':
                stack.callback(os.unlink, address)
                os.chmod(address, 0o777)
        tcp = stack.enter_context(socket.create_server(('127.0.0.1', 0)))
        guests = [f'{place.daemon.top}/state/sandbox/{n}' for n in os.listdir(f'{place.daemon.top}/state/sandbox')]
        assert any(n.endswith('.sock') for n in guests) or place.out('true') == ''
        guests = [f'{place.daemon.top}/state/sandbox/{n}' for n in os.listdir(f'{place.daemon.top}/state/sandbox')]
        text = place.python(f'''
            import socket
            def reach(family, address):
                with socket.socket(family) as s:
                    s.settimeout(5)
                    return s.connect_ex(address) == 0
            for path in {paths + guests + ["/run/docker.sock", "/var/run/docker.sock", "/run/dbus/system_bus_socket"]!r}:
                print(reach(socket.AF_UNIX, path))
            print(reach(socket.AF_UNIX, '\\0{name}'), reach(socket.AF_INET, ('127.0.0.1', {tcp.getsockname()[1]})))
        ''')
    assert 'True' not in text and text.count('False') >= len(paths) + 6


def test_other_processes_cannot_be_seen_signalled_or_traced(place):
    with subprocess.Popen(['sleep', '1000073']) as host:
        try:
            place.count += 1

            def neighbour():
                Job(place.other, 'n').make().start('sleep 1000079')
                return wait_for(lambda: processes_with('1000079'))
            place.as_owner(neighbour)
            text = place.out('cat /proc/[0-9]*/cmdline | tr "\\0" " "; ps axww; ls /proc')
            assert '1000073' not in text and '1000079' not in text and 'wsmfs ' not in text
            text = place.python(f'''
                import ctypes, os, signal
                c = ctypes.CDLL(None, use_errno=True)
                for pid in {[host.pid, place.daemon.pid, os.getpid()]!r}:
                    if os.path.exists(f'/proc/{{pid}}'):
                        continue # a process of its own that has the number
                    try:
                        os.kill(pid, signal.SIGKILL)
                        print('killed')
                    except OSError as e:
                        print(e.errno)
                    print('traced' if c.ptrace(16, pid, 0, 0) == 0 else ctypes.get_errno())
            ''')
            assert 'killed' not in text and 'traced' not in text
            place.run('kill -9 -1; pkill -9 sleep; true')
            assert host.poll() is None and place.daemon.proc.poll() is None and processes_with('1000079')
        finally:
            host.kill()


def test_what_the_daemon_was_started_with_is_nowhere(place):
    assert f'{MARKER}=secret' in read(f'/proc/{place.daemon.pid}/environ').split('\0')
    text = place.out('env; cat /proc/[0-9]*/environ | tr "\\0" "\\n"; cat /proc/1/environ || true')
    assert MARKER not in text


def test_nothing_of_the_kernels_takes_writes(place):
    before = read('/proc/sys/kernel/core_pattern')
    place.refused('echo x > /proc/sys/kernel/core_pattern', 'echo b > /proc/sysrq-trigger',
                  'unshare -Urm sh -c "mount -o remount,rw,bind /proc/sys && : >> /proc/sys/kernel/core_pattern"',
                  'unshare -Urmp --fork sh -c "mount -t proc proc /tmp && : >> /tmp/sys/kernel/core_pattern"',
                  'sysctl -w kernel.core_pattern=x', 'mount -t sysfs sys /tmp', 'mknod b b 8 0', 'cat /dev/mem', 'dmesg -C')
    assert read('/proc/sys/kernel/core_pattern') == before


def test_the_guests_memory_and_descriptors_are_out_of_reach(place):
    text = place.python('''
        import ctypes, os
        c = ctypes.CDLL(None, use_errno=True)
        c.syscall.restype = c.ptrace.restype = ctypes.c_long
        print(open('/proc/1/comm').read().strip())
        fd = c.syscall(434, 1, 0)
        got = [c.syscall(438, fd, n, 0) for n in range(8)]
        print('descriptors', [n for n in got if n >= 0])
        print('traced', c.ptrace(16, 1, 0, 0) == 0 or c.ptrace(0x4206, 1, 0, 0) == 0)
        names = ['mem', 'maps', 'environ', 'root', 'cwd', 'exe', 'pagemap', 'auxv', 'smaps']
        names += [f'fd/{n}' for n in range(20)] # their numbers alone may be listed where the job is uid 0 to itself
        for name in names:
            for look in (lambda path: os.close(os.open(path, os.O_RDONLY)), os.readlink, lambda path: open(path).read(1)):
                try:
                    look('/proc/1/' + name)
                    print('OPENED', name)
                except OSError:
                    pass
    ''')
    assert text.startswith('wsm-guest\n')
    assert 'descriptors []' in text and 'traced False' in text and 'OPENED' not in text, text


def test_no_descriptor_of_the_daemons_gets_in(place):
    text = place.python('''
        import os
        for pid in filter(str.isdigit, os.listdir('/proc')):
            try:
                for fd in os.listdir(f'/proc/{pid}/fd'):
                    print(os.readlink(f'/proc/{pid}/fd/{fd}'))
            except OSError:
                pass
    ''')
    for line in text.splitlines():
        assert re.match(r'(pipe|socket|anon_inode):|/dev/(null|pts)|/proc/|/workspace|/tmp|/memfd:', line) or line == '/', line
        assert place.daemon.top not in line and '/dev/fuse' not in line, line


def test_no_job_is_root_to_the_kernel_or_can_become_it(place, kind):
    place.count += 1

    def start():
        Job(place.s, f'j{place.count}').make().start('sleep 1000081')
        return wait_for(lambda: processes_with('sleep\0' + '1000081'))
    pid = place.as_owner(start)[0]
    status = dict(line.split(':\t', 1) for line in read(f'/proc/{pid}/status').splitlines() if ':\t' in line)
    expected = {'roots-tenant': str(TENANT_ID), 'ordinary-user': str(BOB_UID)}.get(kind)
    for key in ('Uid', 'Gid'):
        ids = set(status[key].split())
        assert len(ids) == 1 and '0' not in ids and (expected is None or ids == {expected}), status[key]
    assert int(status['CapEff'], 16) == int(status['CapBnd'], 16) == 0 and status['NoNewPrivs'].strip() == '1'
    place.refused('su -c true root < /dev/null', 'sudo -n true', 'chroot /', 'mount -t tmpfs x /tmp', 'nsenter -t 1 -m true')
    place.out('cp /usr/bin/id own; chmod 6755 own; test "$(./own -u)" = "$(id -u)"')


def test_a_setuid_file_that_a_job_makes_gives_nobody_rights(place):
    """Its workspace lies below directories that are the daemon's alone, and the mount is nosuid."""
    place.out('cp /usr/bin/id own; chmod 6755 own')
    path = f'{place.path()}/own'
    assert os.path.exists(path)
    options = [line.split()[5] for line in read('/proc/self/mountinfo').splitlines() if line.split()[4] == place.daemon.mnt]
    assert options and all('nosuid' in o for o in options)
    assert harness.as_user(12345, 12345, lambda: harness.errno_of(os.stat, path)) == 'EACCES'


def test_the_sandbox_is_one_workspaces_alone(place):
    place.out('echo here > /tmp/mark; echo here > /dev/shm/mark')

    def look():
        j = Job(place.other, 'look').make().start('ls /tmp /dev/shm; ls /workspace')
        return read(j / 'exit') + read(j / 'stdout')
    assert place.as_owner(look) == '0\n/dev/shm:\n\n/tmp:\nsecret\n'


def test_ctl_and_cmd_of_other_sessions_are_not_a_jobs(place):
    """The tree of control files is not in the sandbox, so a job starts nothing anywhere."""
    place.refused('mkdir /wsm', f'ls {place.daemon.mnt}', f'echo x > {place.daemon.mnt}/bob/coder/s1/.wsm/ctl')
