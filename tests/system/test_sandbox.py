# SPDX-License-Identifier: Apache-2.0
"""What a local sandbox keeps apart: every line of docs/security.md, tried from a job."""

import os
import signal
import socket
import subprocess

import pytest

import sandboxes
from harness import wait_for
from sandboxes import MAPPED_ID, TENANT_GROUP, TENANT_ID, USER_ID, Box, Refused, ended, processes_with

pytestmark = [pytest.mark.root]

KINDS = {
    'roots-own': {},
    'roots-tenant': {'tenant': f'{TENANT_ID}:{TENANT_ID}', 'groups': f'{TENANT_GROUP}'},
    'ordinary-user': {'uid': USER_ID},
}
KERNEL_ID = {'roots-own': MAPPED_ID, 'roots-tenant': TENANT_ID, 'ordinary-user': USER_ID}


@pytest.fixture(scope='module')
def programs(top):
    place = f'{top}/sandbox-programs'
    os.mkdir(place, 0o755)
    return sandboxes.compile_all(place)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def box(kind, programs, workdir):
    b = Box(programs, workdir, **KINDS[kind])
    b.need_mapped_owners()
    yield b
    b.finish()


@pytest.fixture
def roots(programs, workdir):
    b = Box(programs, workdir)
    b.need_mapped_owners()
    yield b
    b.finish()


# ── what is there ───────────────────────────────────────────────────────────────────────────

def test_the_trial_succeeds_where_sandboxes_work(box):
    box.check()
    assert not processes_with(f'{box.programs}/guest')


def test_a_job_runs_in_the_workspace(box):
    s = box.start()
    assert s.out('pwd; echo text > file; cat file').split() == ['/workspace', 'text']
    with open(f'{box.base}/alice/{s.name}/file') as f:
        assert f.read() == 'text\n'


def test_nothing_of_the_host_is_there_but_what_is_named(box):
    s = box.start()
    names = {'bin', 'dev', 'etc', 'lib', 'lib32', 'lib64', 'libx32', 'proc', 'run', 'sbin', 'tmp', 'usr', 'var',
             'workspace'}
    assert set(s.out('ls -A /').split()) <= names
    assert s.out('ls -A /run /run/wsm /var /tmp /dev/shm').split() == \
        ['/dev/shm:', '/run:', 'wsm', '/run/wsm:', 'wsm-guest', '/tmp:', '/var:', 'tmp']
    for path in ('/etc/shadow', '/etc/gshadow', '/etc/sudoers', '/etc/ssh', '/etc/ssl/private', '/root', '/home', '/sys',
                 '/mnt', '/boot', '/srv', '/opt', box.path, box.base, box.sockets):
        assert s.run(f'test -e {path} || test -L {path}')[1] == 1, path


def test_the_hosts_sockets_have_no_path_inside(box):
    paths = ['/run/wsm-test.sock', '/tmp/wsm-test.sock', '/var/wsm-test.sock']
    listeners = []
    try:
        for path in paths:
            listener = socket.socket(socket.AF_UNIX)
            listeners.append((listener, path))
            listener.bind(path)
            os.chmod(path, 0o777)
            listener.listen()
        s = box.start()
        for path in [*paths, '/run/docker.sock', '/var/run/docker.sock', '/run/dbus/system_bus_socket']:
            assert s.run(f'test -e {path}')[1] == 1, path
    finally:
        for listener, path in listeners:
            listener.close()
            os.unlink(path)


def test_only_the_workspace_and_memory_take_writes(box):
    s = box.start()
    for path in ('/x', '/usr/x', '/bin/x', '/lib/x', '/etc/x', '/var/x', '/run/x', '/run/wsm/x', '/dev/x', '/proc/x',
                 '/etc/passwd', '/etc/hosts', '/usr/bin/env'):
        text, code = s.run(f'echo bad >> {path}')
        assert code != 0, path
    s.out('for d in /workspace /tmp /var/tmp /dev/shm; do echo good > $d/x && cat $d/x; done')
    assert not os.path.exists('/dev/shm/x')


def test_the_hosts_tmp_and_a_sandboxs_are_two(box):
    s = box.start()
    marker = f'/tmp/wsm-test-{os.getpid()}'
    s.out(f'echo inside > {marker}')
    assert not os.path.exists(marker)


def test_everything_is_mounted_without_setuid_and_devices(box):
    s = box.start()
    for line in s.out('cat /proc/self/mountinfo').splitlines():
        words = line.split()
        options = words[5].split(',')
        assert 'nosuid' in options, line
        if not words[4].startswith('/dev/') and words[4] != '/dev':
            assert 'nodev' in options, line


def test_ordinary_tools_work(box):
    s = box.start()
    assert s.python('print(6 * 7)') == '42'
    s.out('git init -q r && cd r && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && git log')
    assert 'wsm-guest' in s.out('ps ax')
    s.out('printf "int main(void){return 0;}" > a.c && cc a.c -o a && ./a')


# ── who it is ───────────────────────────────────────────────────────────────────────────────

def test_no_job_is_root_to_the_kernel(box, kind):
    s = box.start()
    marker = '1000031.5'
    s.out(f'sleep {marker} > /dev/null 2>&1 &')
    pids = [s.pid, *wait_for(lambda: processes_with(marker), what='the job')]
    for pid in pids:
        with open(f'/proc/{pid}/status') as f:
            status = dict(line.rstrip('\n').split(':\t', 1) for line in f if ':\t' in line)
        assert status['Uid'].split() == [str(KERNEL_ID[kind])] * 4
        assert status['Gid'].split() == [str(KERNEL_ID[kind])] * 4
        assert status['Groups'].split() == ([str(TENANT_GROUP)] if kind == 'roots-tenant' else [])


def test_no_process_has_a_capability_or_can_get_one(box):
    s = box.start()
    for line in s.out('cat /proc/self/status /proc/1/status').splitlines():
        if line.startswith('Cap'):
            assert line.split()[1] == '0' * 16, line
        if line.startswith('NoNewPrivs'):
            assert line.split()[1] == '1'
    text, _ = s.run('cp /usr/bin/id ./id && chmod 4755 ./id && ./id -u; id -u; su -c id root < /dev/null')
    lines = text.split()
    assert lines[0] == lines[1]
    assert s.run('mknod x b 8 0')[1] != 0
    assert s.run('chroot / true')[1] != 0


def test_files_belong_on_disk_to_whom_they_should(box, kind):
    s = box.start()
    s.out('echo x > file; mkdir d; ln -s file link')
    owner = {'roots-own': 0, 'roots-tenant': TENANT_ID, 'ordinary-user': USER_ID}[kind]
    for name in ('file', 'd', 'link'):
        st = os.lstat(f'{box.base}/alice/{s.name}/{name}')
        assert (st.st_uid, st.st_gid) == (owner, owner)
    inside = {'roots-own': 0, 'roots-tenant': TENANT_ID, 'ordinary-user': USER_ID}[kind]
    assert s.out('id -u; stat -c %u:%g file').split() == [str(inside), f'{inside}:{inside}']


def test_roots_own_job_has_no_rights_over_other_owners_files(roots):
    path = roots.workspace('s1')
    for name, mode in (('closed', 0o600), ('open', 0o644)):
        with open(f'{path}/{name}', 'w') as f:
            f.write('text')
        os.chown(f'{path}/{name}', USER_ID, USER_ID)
        os.chmod(f'{path}/{name}', mode)
    s = roots.start(workspace='alice/s1')
    assert s.run('cat closed')[1] != 0
    assert s.out('cat open') == 'text'
    assert s.run('echo more >> open')[1] != 0
    assert s.run('chown 0:0 open')[1] != 0


def test_a_job_has_a_name_and_a_home(box):
    s = box.start()
    assert s.out('echo ~; id -un; id -gn; getent passwd $(id -u) | cut -d: -f6').split()[0] == '/workspace'
    assert s.out('getent passwd $(id -u) | cut -d: -f6') == '/workspace'
    assert s.out('id -un') != ''
    assert s.run('id -gn')[1] == 0


def test_jobs_can_be_given_other_ids_to_see_and_files_keep_their_owner(box, kind):
    s = box.start(inside='1000:1000')
    assert s.out('id -u; id -g').split() == ['1000', '1000']
    s.out('echo x > file')
    owner = {'roots-own': 0, 'roots-tenant': TENANT_ID, 'ordinary-user': USER_ID}[kind]
    assert os.stat(f'{box.base}/alice/{s.name}/file').st_uid == owner
    assert s.status('Uid')[0] == str(KERNEL_ID[kind])


def test_the_environment_is_made_from_nothing(box):
    marker = 'WSM_TEST_MARKER'
    s = box.start(env=['A=1', 'LANG=de_DE.UTF-8', 'ODD= a=b "c" \\d'],
                  popen={'env': {**os.environ, marker: 'secret', 'LD_WSM': 'x'}})
    env = dict(line.split('=', 1) for line in s.out('env -0 | tr "\\0" "\\n"').splitlines())
    del env['PWD']
    assert env == {'HOME': '/workspace', 'TERM': 'xterm-256color', 'LANG': 'de_DE.UTF-8', 'A': '1',
                   'ODD': ' a=b "c" \\d', 'PATH': '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'}
    with open(f'/proc/{s.pid}/environ', 'rb') as f:
        assert marker.encode() not in f.read()


def test_what_the_daemon_has_set_for_itself_is_not_inherited(box):
    def odd():
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR2])
        os.umask(0)
    s = box.start(popen={'preexec_fn': odd})
    status = dict(line.split(':\t', 1) for line in s.out('cat /proc/self/status').splitlines() if ':\t' in line)
    assert int(status['SigIgn'], 16) == 0 and int(status['SigBlk'], 16) == 0
    assert s.out('umask') == '0022'
    assert s.python('import resource as r; print(r.getrlimit(r.RLIMIT_CORE), r.getrlimit(r.RLIMIT_NOFILE)[0])') == \
        '(1, 1) 1024'


def test_a_job_has_no_terminal_of_the_daemons(box):
    s = box.start()
    assert s.run('exec < /dev/tty')[1] != 0


def test_keys_of_the_daemons_session_are_not_possessed(box):
    program = '''
        import ctypes
        c = ctypes.CDLL(None, use_errno=True)
        c.syscall.restype = ctypes.c_long
        print(c.syscall({request_key}, b'user', b'wsm-test-key', None, 0))
    '''
    numbers = {'x86_64': (248, 249, 250), 'aarch64': (217, 218, 219)}
    add_key, request_key, keyctl = numbers[os.uname().machine]

    def with_key():
        import ctypes
        c = ctypes.CDLL(None, use_errno=True)
        c.syscall.restype = ctypes.c_long
        if c.syscall(keyctl, 1, None) < 0 or c.syscall(add_key, b'user', b'wsm-test-key', b'secret', 6, -3) < 0:
            os._exit(99)
        if c.syscall(request_key, b'user', b'wsm-test-key', None, 0) < 0:
            os._exit(98)
    s = box.start(popen={'preexec_fn': with_key})
    assert s.python(program.format(request_key=request_key)) == '-1'


# ── the host's processes and kernel ─────────────────────────────────────────────────────────

def test_processes_of_the_host_are_not_there(box):
    other = subprocess.Popen(['sleep', '1000037'])
    try:
        s = box.start()
        assert '1000037' not in s.out('ps axww; cat /proc/[0-9]*/cmdline | tr "\\0" " "')
        assert s.run(f'test -e /proc/{other.pid}')[1] == 1
        s.run('kill -9 -1')
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_nothing_in_proc_that_is_the_kernels_takes_writes(box):
    """Opens for writing and writes nothing."""
    s = box.start()
    text = s.python('''
        import os
        count = 0
        for top, dirs, files in os.walk('/proc'):
            if top == '/proc':
                dirs[:] = [d for d in dirs if not d.isdigit() and d not in ('self', 'thread-self')]
            for name in files:
                path = os.path.join(top, name)
                count += 1
                try:
                    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
                except OSError:
                    continue
                print('WRITABLE', path)
        print(count)
    ''')
    lines = text.splitlines()
    assert int(lines[-1]) > 500
    assert lines[:-1] == []


@pytest.mark.parametrize('trick', [
    'umount /proc/sys', 'umount -l /proc', 'mount -o remount,rw /proc/sys', 'mount -t proc proc /tmp',
    'mount -o remount,rw,bind /usr', 'mount -o remount,rw /', 'pivot_root . .', 'umount /workspace',
    'unshare -Urm sh -c "umount /proc/sys"', 'unshare -Urm sh -c "umount -l /proc/sys"',
    'unshare -Urm sh -c "mount -o remount,rw,bind /proc/sys && : >> /proc/sys/kernel/core_pattern"',
    'unshare -Urmp --fork sh -c "mount -t proc proc /tmp && : >> /tmp/sys/kernel/core_pattern"',
    'unshare -Urm sh -c "mount -o remount,rw,bind /usr && touch /usr/x"',
    'unshare -Urm sh -c "mount --bind /proc /tmp && : >> /tmp/sys/kernel/core_pattern"',
    'unshare -Urm sh -c "mount -t sysfs sys /tmp && : >> /tmp/kernel/uevent_helper"',
    'unshare -Urm sh -c "mount -t devtmpfs d /tmp && ls /tmp/vda /tmp/sda"',
    'unshare -Urm sh -c "mount -t tmpfs t /tmp && mknod /tmp/x b 254 0"',
    'unshare -UrC sh -c "mount -t cgroup2 c /tmp && echo 0 > /tmp/cgroup.procs && echo 1 > /tmp/pids.max"',
    'nsenter -t 1 -m true', 'nsenter -t 1 -U true',
])
def test_the_walls_cannot_be_taken_down_from_inside(box, trick):
    s = box.start()
    assert s.run(trick)[1] != 0
    assert s.run(': >> /proc/sys/kernel/core_pattern')[1] != 0
    assert s.run('touch /usr/x')[1] != 0


def test_all_capabilities_of_a_namespace_inside_take_down_no_wall(box):
    """In a user namespace of its own a job has every capability over what it makes there, and over
    nothing that was there before."""
    s = box.start()
    text = s.python('''
        import ctypes, functools, os
        print = functools.partial(print, flush=True)
        NEWUSER, NEWNS, NEWPID, NEWNET, NEWCGROUP = 0x10000000, 0x20000, 0x20000000, 0x40000000, 0x02000000
        REMOUNT, BIND, REC, PRIVATE, DETACH = 32, 4096, 16384, 1 << 18, 2
        c = ctypes.CDLL(None, use_errno=True)
        def mount(source, target, kind, flags):
            return c.mount(source, target, kind, flags, None)
        def writable():
            found = []
            for path in ('/proc/sys/kernel/core_pattern', '/proc/sysrq-trigger', '/tmp/p/sys/kernel/core_pattern',
                         '/tmp/p/sysrq-trigger', '/tmp/b/sys/kernel/core_pattern', '/tmp/s/kernel/uevent_helper'):
                try:
                    os.close(os.open(path, os.O_WRONLY))
                    found.append(path)
                except OSError:
                    pass
            for path in ('/usr/x', '/etc/x', '/bin/x', '/run/wsm/x', '/tmp/u/x'):
                try:
                    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
                    found.append(path)
                except OSError:
                    pass
            return found
        for name in 'pbsug':
            os.mkdir('/tmp/' + name)
        print('capable' if c.unshare(NEWUSER | NEWNS | NEWPID | NEWNET | NEWCGROUP) == 0 else 'incapable')
        pid = os.fork()
        if pid == 0:
            mount(b'none', b'/', None, REC | PRIVATE)
            print('own mount', mount(b't', b'/tmp/g', b'tmpfs', 0))
            mount(b'proc', b'/tmp/p', b'proc', 0)
            mount(b'sysfs', b'/tmp/s', b'sysfs', 0)
            mount(b'/proc', b'/tmp/b', None, BIND)
            mount(b'/proc', b'/tmp/b', None, BIND | REC)
            mount(b'/usr', b'/tmp/u', None, BIND | REC)
            for path in (b'/proc/sys', b'/proc/sysrq-trigger', b'/usr', b'/', b'/tmp/b/sys', b'/tmp/u', b'/etc', b'/run'):
                mount(None, path, None, REMOUNT | BIND)
                mount(None, path, None, REMOUNT)
                if path != b'/tmp/u': # its own, below it is memory
                    c.umount2(path, 0)
                    c.umount2(path, DETACH)
            print(*writable())
            for device in ('/dev/mem', '/dev/kmsg', '/dev/sda', '/dev/vda'):
                assert not os.path.exists(device)
            try:
                os.mknod('/tmp/g/x', 0o600 | 0o060000, os.makedev(7, 0))
                os.close(os.open('/tmp/g/x', os.O_RDONLY))
                print('a device')
            except OSError:
                pass
            os._exit(0)
        os.waitpid(pid, 0)
    ''')
    assert [line for line in text.splitlines() if line] == ['capable', 'own mount 0']


def test_user_namespaces_inside_can_be_denied(box):
    program = '''
        import ctypes
        c = ctypes.CDLL(None)
        print(c.unshare(0x10000000))
    '''
    allowed, denied = box.start(), box.start(nesting='no')
    assert allowed.python(program) == '0'
    assert denied.python(program) == '-1'
    for s in (allowed, denied):
        assert s.out('echo x > file; cat file; stat -c %u file; cat /proc/self/status | grep CapBnd').split() == \
            ['x', s.out('id -u'), 'CapBnd:', '0' * 16]


# ── network ─────────────────────────────────────────────────────────────────────────────────

CONNECT = '''
    import socket
    for family, address in ((socket.AF_INET, ('127.0.0.1', {port})), (socket.AF_UNIX, '\\0{name}')):
        with socket.socket(family) as s:
            s.settimeout(5)
            print(s.connect_ex(address) == 0)
'''


@pytest.fixture
def services():
    name = f'wsm-test-{os.getpid()}'
    with socket.create_server(('127.0.0.1', 0)) as tcp, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind('\0' + name)
        abstract.listen()
        yield CONNECT.format(port=tcp.getsockname()[1], name=name)


def test_without_a_network_the_hosts_loopback_and_abstract_sockets_are_out_of_reach(box, services):
    s = box.start()
    assert s.python(services).split() == ['False', 'False']
    assert s.out('ls /sys/class/net 2>/dev/null; tail -n +3 /proc/net/dev | cut -d: -f1').split() == ['lo']


def test_with_the_hosts_network_both_are_reachable(box, services):
    s = box.start(network='host')
    assert s.python(services).split() == ['True', 'True']


# ── the guest ───────────────────────────────────────────────────────────────────────────────

TRACE = '''
    import ctypes, os, signal, subprocess
    c = ctypes.CDLL(None, use_errno=True)
    c.ptrace.restype = c.syscall.restype = ctypes.c_long
    def errno_of(call):
        return ctypes.get_errno() if call < 0 else 0
    def attempts(pid):
        pidfd = c.syscall(434, pid, 0)
        yield errno_of(c.syscall(438, pidfd, 3, 0))         # pidfd_getfd
        yield errno_of(c.ptrace(0x4206, pid, 0, 0))         # PTRACE_SEIZE
        for name in ('mem', 'environ', 'fd/3', 'maps', 'root', 'cwd', 'exe'):
            try:
                os.close(os.open(f'/proc/{pid}/' + name, os.O_RDONLY))
                yield 0
            except OSError as e:
                yield e.errno
    child = subprocess.Popen(['sleep', '100'], stdin=subprocess.DEVNULL, preexec_fn=lambda: os.dup2(0, 3),
                             pass_fds=[3] if os.dup2(0, 3) else [])
    print(*attempts(1))
    print(*attempts(child.pid))
    child.kill()
'''


def test_the_guests_memory_and_descriptors_are_out_of_a_jobs_reach(box):
    guest, own = [[int(w) for w in line.split()] for line in box.start().python(TRACE).splitlines()]
    assert len(guest) == 9 and all(guest), guest
    assert not any(own), own


def test_a_job_cannot_end_the_guest(box):
    s = box.start()
    s.run('kill -9 1; kill -TERM 1; kill -STOP 1; sleep 0.1')
    assert s.alive() and s.out('echo here') == 'here'


def test_the_guests_program_cannot_be_changed_from_inside(box):
    s = box.start()
    path = '/run/wsm/wsm-guest'
    for line in (f'echo x >> {path}', f'rm -f {path}', f'mv {path} /run/wsm/x', f'chmod 777 {path}', 'rm -r /run/wsm',
                 f'cp /bin/true {path}', f'mount --bind /bin/true {path}', 'echo x >> /proc/1/exe', f'truncate -s 0 {path}',
                 f'ln {path} /workspace/guest && echo x >> /workspace/guest'):
        assert s.run(line)[1] != 0, line
    with open(f'{box.programs}/guest', 'rb') as a:
        assert a.read(4) == b'\x7fELF'


def test_no_descriptor_of_the_daemons_gets_in(box, workdir):
    with open(f'{workdir}/secret', 'w') as f:
        os.set_inheritable(f.fileno(), True)
        spare = [os.dup(f.fileno()) for _ in range(150)]
        for fd in spare:
            os.set_inheritable(fd, True)
        try:
            s = box.start(popen={'pass_fds': [f.fileno(), *spare]})
        finally:
            for fd in spare:
                os.close(fd)
    fds = {int(n): os.readlink(f'/proc/{s.pid}/fd/{n}') for n in os.listdir(f'/proc/{s.pid}/fd')}
    assert sorted(fds) == [0, 1, 2, 3], fds
    assert fds[0] == fds[1] == '/dev/null' and 'wsm-stderr' in fds[2] and fds[3].startswith('socket:')
    job = [line.split(' -> ')[1] for line in s.out('ls -l /proc/self/fd').splitlines() if ' -> ' in line]
    assert len(job) == 4 and job[0] == '/dev/null', job
    assert job[1] == job[2] and job[1].startswith('socket:') and job[3].startswith('/proc/')


# ── its life ────────────────────────────────────────────────────────────────────────────────

def test_a_sandbox_goes_on_when_the_daemon_is_killed(box):
    starter, s = box.hold()
    s.out('(sleep 1000041 &) > /dev/null 2>&1')
    starter.kill()
    starter.wait()
    starter.stdout.close()
    starter.stderr.close()
    assert s.out('echo here') == 'here'
    assert processes_with('1000041')
    assert s.status('PPid') != [str(starter.pid)]


def test_no_process_of_bubblewrap_stays(box):
    starter, s = box.hold()
    try:
        children = [p for p in processes_with('bwrap') if int(ppid(p)) == starter.pid]
        assert not children
        assert os.getsid(s.pid) != os.getsid(starter.pid)
    finally:
        starter.kill()
        starter.communicate()


def ppid(pid):
    with open(f'/proc/{pid}/stat') as f:
        return f.read().rsplit(')', 1)[1].split()[1]


def test_its_end_ends_every_process_in_it(box):
    s = box.start()
    s.out('setsid sleep 1000043 > /dev/null 2>&1 & (trap "" TERM HUP; sleep 1000043 > /dev/null 2>&1 &)')
    wait_for(lambda: len(processes_with('1000043')) == 2)
    s.end()
    assert not processes_with('1000043')
    assert ended(s.pid)


def test_a_sandbox_is_found_again_by_its_mark_and_by_no_other(box):
    s = box.start()
    box.driver('adopt', s.mark)
    pid, ticks, boot = s.mark.split('.')
    for mark, code in ((f'{pid}.{int(ticks) + 1}.{boot}', 3), (f'{os.getpid()}.{ticks}.{boot}', 3),
                       (f'{pid}.{ticks}.{boot[::-1]}', 3), ('', 22), ('x', 22), (f'{pid}.0.{boot}', 22)):
        with pytest.raises(Refused) as refusal:
            box.driver('adopt', mark)
        assert refusal.value.args[0] == code, mark
    s.end()
    with pytest.raises(Refused) as refusal:
        box.driver('adopt', s.mark)
    assert refusal.value.args[0] == 3


def test_a_mount_of_the_host_is_not_held_by_a_sandbox(roots, workdir):
    point = f'{workdir}/m'
    os.mkdir(point)
    subprocess.run(['mount', '-t', 'tmpfs', 'wsm-test', point], check=True)
    try:
        roots.start()
    finally:
        subprocess.run(['umount', point], check=True)
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            with open(f'/proc/{pid}/mountinfo') as f:
                assert point not in f.read(), pid
        except OSError:
            continue


def test_two_sandboxes_do_not_see_each_other(box):
    a, b = box.start(), box.start()
    a.out('echo secret > file; echo secret > /tmp/file; sleep 1000047 > /dev/null 2>&1 &')
    wait_for(lambda: processes_with('1000047'))
    assert b.out('ls -A /workspace /tmp') == '/tmp:\n\n/workspace:'
    assert '1000047' not in b.out('ps axww')
    b.run('kill -9 -1; pkill -9 sleep')
    assert processes_with('1000047')
