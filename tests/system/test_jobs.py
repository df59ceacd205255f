# SPDX-License-Identifier: Apache-2.0
"""Jobs: running a command through files."""

import json
import os
import stat
import subprocess

import pytest

from harness import SANITIZER, append, errno_of, in_child, open_errno, put, read, sh, wait_for, write
from jobs import Job, job, output, run
from sandboxes import processes_with

pytestmark = pytest.mark.root


def test_a_command_runs_by_making_a_directory_and_writing_cmd(fresh):
    sh(f"mkdir {fresh.inner}/jobs/test && echo 'echo hello; echo oops >&2; exit 2' > {fresh.inner}/jobs/test/cmd")
    assert sh(f'cat {fresh.inner}/jobs/test/stdout') == 'hello\n'
    assert sh(f'cat {fresh.inner}/jobs/test/stderr') == 'oops\n'
    assert sh(f'cat {fresh.inner}/jobs/test/exit') == '2\n'


def test_a_job_runs_in_the_workspace(fresh):
    write(fresh / 'file', 'content')
    assert output(fresh, 'pwd; cat file; echo made > other') == '/workspace\ncontent'
    assert read(fresh / 'other') == 'made\n'


def test_the_directory_holds_the_documented_files(fresh):
    job(fresh)
    assert sorted(os.listdir(f'{fresh.inner}/jobs/j')) == sorted(
        ['cmd', 'argv', 'cwd', 'env', 'timeout', 'tty', 'user', 'stdin', 'stdout', 'stderr', 'log', 'exit', 'status',
         'ctl'])


def test_exit_says_the_signal(fresh):
    assert run(fresh, 'kill -9 $$')[0] == 'signal 9'


def test_a_command_that_does_not_exist_is_127_and_a_sentence(fresh):
    code, _, err = run(fresh, 'no-such-program-here')
    assert code == '127' and 'no-such-program-here' in err


def test_argv_runs_without_a_shell(fresh):
    j = job(fresh)
    write(j / 'argv', json.dumps(['printf', '%s|', 'a b', '$HOME', '*', '']))
    assert j.exit() == '0'
    assert j.text('stdout') == 'a b|$HOME|*||'


def test_argv_holds_odd_bytes(fresh):
    j = job(fresh)
    write(j / 'argv', b'["printf", "%s", "\xff\xfe\\u00e4\\n\\u0001"]')
    assert j.exit() == '0'
    assert j.raw('stdout') == b'\xff\xfe\xc3\xa4\n\x01'


def test_an_argv_program_that_does_not_exist_is_told(fresh):
    j = job(fresh)
    write(j / 'argv', '["/no/such/program"]')
    code = j.exit()
    assert code == '127' or code.startswith('error '), code


@pytest.mark.parametrize('text', ['', 'ls', '[]', '[""]', '{"a": 1}', '["a", 1]', '["a\\u0000b"]', '["a"', '["a"] x'])
def test_invalid_argv_fails_the_close_and_starts_nothing(fresh, text):
    j = job(fresh)
    fd = os.open(j / 'argv', os.O_WRONLY)
    if text:
        os.write(fd, text.encode())
    assert errno_of(os.close, fd) == ('EINVAL' if text else None)
    if text:
        assert j.exit().startswith('error ')
    assert j.state() == ('failed' if text else 'new')


def test_env_gives_variables(fresh):
    j = job(fresh, env='A=1\nB=two words\n').start('echo "$A/$B"')
    assert j.out() == '1/two words\n'


def test_env_may_be_nul_separated(fresh):
    j = job(fresh, env=b'A=one\ntwo\0B=2\0').start('printf %s "$A/$B"')
    assert j.out() == 'one\ntwo/2'


def test_a_line_of_env_without_an_equals_sign_is_refused(fresh):
    j = job(fresh)
    assert errno_of(put, j / 'env', 'A=1\nnonsense\n') == 'EINVAL'
    assert j.text('env') == ''
    assert 'K=V' in fresh.error()


@pytest.mark.local('an engine adds HOSTNAME')
def test_the_environment_is_made_from_nothing(fresh):
    names = {line.split('=')[0] for line in output(fresh, 'env').splitlines()}
    assert names <= {'HOME', 'PATH', 'TERM', 'LANG', 'PWD', 'SHLVL', '_', 'OLDPWD'}, names


@pytest.mark.parametrize('cwd', ['sub/dir', './sub//dir/', '/workspace/sub/dir', 'sub/../sub/dir'])
def test_cwd_is_a_directory_of_the_workspace(fresh, cwd):
    os.makedirs(fresh / 'sub/dir')
    assert output(fresh, 'pwd', cwd=cwd) == '/workspace/sub/dir\n'


def test_cwd_may_be_below_the_sessions_own_path(fresh):
    os.makedirs(fresh / 'sub')
    assert output(fresh, 'pwd', cwd=fresh / 'sub') == '/workspace/sub\n'


@pytest.mark.parametrize('cwd', ['/', '/etc', '..', 'a/../../b', '/workspace/..', '/workspaces', 'a\nb'])
def test_another_cwd_is_refused_at_the_write(fresh, cwd):
    j = job(fresh)
    assert errno_of(put, j / 'cwd', cwd) == 'EINVAL'
    assert j.text('cwd') == ''


def test_a_cwd_that_is_not_there_is_told_in_exit(fresh):
    code = job(fresh, cwd='missing').start('true').exit()
    assert code.startswith('error ') and 'missing' in code, code


def test_status_tells_what_a_job_does(fresh):
    j = job(fresh)
    assert j.status() == {'state': 'new', 'pid': None, 'start': None, 'end': None, 'exit_code': None, 'signal': None,
                          'timed_out': False, 'error': None, 'stdout_bytes': 0, 'stderr_bytes': 0, 'dropped_bytes': 0}
    j.start('echo abc; echo de >&2; until [ -e go ]; do sleep 0.02; done; exit 7')
    j.wait_output('de')
    status = j.status()
    assert status['state'] == 'running' and status['pid'] > 0 and status['start'] and not status['end']
    assert (status['stdout_bytes'], status['stderr_bytes']) == (4, 3)
    write(fresh / 'go', '')
    assert j.exit() == '7'
    status = j.status()
    assert status['state'] == 'ended' and status['exit_code'] == 7 and status['end'] >= status['start']


def test_every_way_of_reading_an_ended_job_gives_the_same_bytes(fresh):
    run(fresh, 'seq 1 20000; seq 5 >&2')
    j = Job(fresh, 'j')
    want = ''.join(f'{i}\n' for i in range(1, 20001))
    assert os.stat(j / 'stdout').st_size == len(want)
    assert j.text('stdout') == want
    assert sh(f'cat {j.dir}/stdout') == want
    assert sh(f'tail -n 1 {j.dir}/stdout') == '20000\n'
    assert sh(f'head -c 5 {j.dir}/stdout') == want[:5]
    assert sh(f'wc -c < {j.dir}/stdout').strip() == str(len(want))
    copy = fresh / 'copy'
    sh(f"python3 -c \"import shutil; shutil.copyfile('{j.dir}/stdout', '{copy}')\"")
    assert read(copy) == want
    sh(f'cp {j.dir}/stdout {copy}2')
    assert read(copy + '2') == want
    for name in ('exit', 'status', 'cmd', 'stderr', 'log'):
        sh(f"python3 -c \"import shutil; shutil.copyfile('{j.dir}/{name}', '{copy}3')\"")
        assert read(copy + '3') == j.text(name), name


def test_log_has_both_streams_in_their_order(fresh):
    """Each line is written when the one before it has been taken in: of two pipes that both hold something nobody
    can tell which was written first."""
    j = job(fresh)
    with open(j / 'stdin', 'w', encoding='utf-8') as told:
        j.start('for i in 1 2 3 4 5; do echo out $i; read -r go; echo err $i >&2; read -r go; done')
        for i in range(1, 6):
            for line in (f'out {i}\n', f'err {i}\n'):
                j.wait_output(line)
                told.write('go\n')
                told.flush()
    assert j.exit() == '0'
    assert j.text('log') == ''.join(f'out {i}\nerr {i}\n' for i in range(1, 6))


def test_log_of_a_running_job_returns_at_once_and_is_seekable(fresh):
    j = job(fresh).start('echo one; echo two; sleep 1000')
    j.wait_output('two')
    assert in_child(lambda: j.text('log')) == 'one\ntwo\n'
    with open(j / 'log', 'rb') as f:
        assert f.seek(0, os.SEEK_END) == 8
        f.seek(4)
        assert f.read() == b'two\n'
    assert os.stat(j / 'log').st_size == 8
    j.ctl('kill')


def test_jobs_belong_to_their_session(shared_daemon, fresh):
    other = shared_daemon.session(f'{fresh.names.rsplit("/", 1)[0]}/s2')
    assert run(fresh, 'echo x > made-by-s1')[0] == '0'
    assert other.id() == fresh.id()
    assert os.listdir(f'{fresh.inner}/jobs') == ['j']
    assert os.listdir(f'{other.inner}/jobs') == []
    assert not os.path.exists(f'{other.inner}/jobs/j')
    assert output(other, 'cat made-by-s1') == 'x\n'


def test_a_job_removed_in_one_tree_is_gone_in_the_other_at_once(fresh):
    here, there = Job(fresh, 'j'), Job(fresh, 'j', control=fresh.control)
    for removed_in, looked_at in ((here, there), (there, here)):
        looked_at.make()
        os.stat(removed_in.dir)
        os.stat(looked_at.dir)
        os.rmdir(removed_in.dir)
        assert errno_of(os.stat, looked_at.dir) == 'ENOENT'
        looked_at.make()
        os.rmdir(looked_at.dir)


def test_a_job_costs_few_requests(mount):
    """A count says more than a time: each request is two switches between processes."""
    d = mount()
    s = d.session()
    unpaid = ('release', 'forget')  # nobody waits for these

    def costs(n):
        before = d.metrics()
        for _ in range(n):
            assert run(s, 'exit 0')[0] == '0'
            os.rmdir(Job(s, 'j').dir)
        after = d.metrics()
        return sum(after[k] - before[k] for k in after
                   if k.startswith('wsmfs_requests_total') and not any(f'"{op}"' in k for op in unpaid))

    costs(1)
    assert (costs(20) - costs(10)) / 10 < 24


def test_the_managers_path_shows_the_same_jobs(fresh):
    j = Job(fresh, 'j', control=fresh.control).make().start('echo here')
    assert j.out() == 'here\n'
    assert Job(fresh, 'j').text('stdout') == 'here\n'
    assert os.stat(j / 'cmd').st_ino == os.stat(Job(fresh, 'j') / 'cmd').st_ino


@pytest.mark.parametrize('name', ['.hidden', 'a\nb', '\x01', 'x' * 256])
def test_a_name_that_a_session_could_not_have_is_refused(fresh, name):
    assert errno_of(os.mkdir, f'{fresh.inner}/jobs/{name}') in ('EINVAL', 'ENAMETOOLONG')
    assert os.listdir(f'{fresh.inner}/jobs') == []


@pytest.mark.parametrize('name', ['a.b', 'build', 'x' * 255, 'ä ö', '-rf', 'node_modules'])
def test_other_names_are_fine(fresh, name):
    assert Job(fresh, name).make().start('echo $0').exit() == '0'
    assert os.listdir(f'{fresh.inner}/jobs') == [name]


def test_a_name_is_there_once(fresh):
    job(fresh)
    assert errno_of(os.mkdir, f'{fresh.inner}/jobs/j') == 'EEXIST'
    assert errno_of(os.stat, f'{fresh.inner}/jobs/k') == 'ENOENT'
    assert errno_of(os.mkdir, f'{fresh.inner}/jobs/new') == 'EEXIST'


def test_reading_new_makes_a_job_with_a_fresh_name(fresh):
    names = [read(f'{fresh.inner}/jobs/new').rstrip('\n') for _ in range(3)]
    assert len(set(names)) == 3
    assert sorted(os.listdir(f'{fresh.inner}/jobs')) == sorted(names)
    assert Job(fresh, names[1]).start('echo x').out() == 'x\n'
    assert sh(f'n=$(cat {fresh.inner}/jobs/new); echo "echo $n" > {fresh.inner}/jobs/$n/cmd; '
              f'test "$(cat {fresh.inner}/jobs/$n/stdout)" = "$n" && echo good') == 'good\n'


def test_listing_and_looking_start_nothing(fresh):
    os.listdir(f'{fresh.control}/jobs')
    job(fresh)
    sh(f'ls -lR {fresh.control}/jobs; cat {fresh.control}/jobs/j/cmd {fresh.control}/jobs/j/log')
    assert Job(fresh, 'j').state() == 'new'
    assert fresh.state() == 'absent'


def test_an_ended_job_can_be_removed(fresh):
    run(fresh, 'echo x')
    os.rmdir(f'{fresh.inner}/jobs/j')
    assert os.listdir(f'{fresh.inner}/jobs') == []
    assert output(fresh, 'echo again') == 'again\n'


def test_rm_r_removes_an_ended_job(fresh):
    run(fresh, 'echo x')
    sh(f'rm -r {fresh.inner}/jobs/j')
    assert os.listdir(f'{fresh.inner}/jobs') == []


def test_a_job_that_runs_cannot_be_removed(fresh):
    j = job(fresh).start('sleep 1000')
    assert errno_of(os.rmdir, j.dir) == 'EBUSY'
    sh(f'rm -rf {j.dir}', check=False)
    j.wait_state('running', 'ended')
    assert os.path.exists(j / 'status')
    j.ctl('kill')
    j.exit()
    os.rmdir(j.dir)


def test_a_job_whose_command_is_being_written_cannot_be_removed(fresh):
    j = job(fresh)
    fd = os.open(j / 'cmd', os.O_WRONLY)
    os.write(fd, b'true')
    assert errno_of(os.rmdir, j.dir) == 'EBUSY'
    os.close(fd)
    assert j.exit() == '0'


def test_output_that_is_read_after_the_removal_is_whole(fresh):
    j = job(fresh).start('seq 100000')
    assert j.exit() == '0'
    with open(j / 'stdout', 'rb') as f:
        first = f.read(10)
        os.rmdir(j.dir)
        assert first == b'1\n2\n3\n4\n5\n'


def test_a_started_job_takes_no_other_command(fresh):
    run(fresh, 'echo x')
    j = Job(fresh, 'j')
    for name in ('cmd', 'argv', 'env', 'cwd', 'timeout', 'tty', 'user'):
        assert open_errno(j / name, os.O_WRONLY) == 'EBUSY', name
    assert errno_of(j.ctl, 'start') == 'EBUSY'


def test_what_is_not_written_cannot_be_opened_for_writing(fresh):
    j = job(fresh)
    for name in ('stdout', 'stderr', 'log', 'exit', 'status'):
        assert open_errno(j / name, os.O_WRONLY) == 'EACCES', name
    for name in ('stdin', 'ctl'):
        assert open_errno(j / name, os.O_RDONLY) == 'EACCES', name


def test_modes_tell_what_a_file_is_for(fresh):
    j = job(fresh)
    assert stat.S_IMODE(os.stat(j / 'cmd').st_mode) == 0o644
    assert stat.S_IMODE(os.stat(j / 'stdin').st_mode) == 0o200
    assert stat.S_IMODE(os.stat(j / 'stdout').st_mode) == 0o444


def test_binary_output_is_untouched(fresh):
    want = bytes(range(256)) * 1000
    write(fresh / 'blob', want)
    run(fresh, 'cat blob; cat blob >&2')
    assert Job(fresh, 'j').raw('stdout') == want
    assert Job(fresh, 'j').raw('stderr') == want


def test_a_script_of_one_mebibyte_runs(fresh):
    line = '# ' + 'x' * 61 + '\n'
    script = line * ((1 << 20) // len(line) - 1) + 'echo end\n'
    assert output(fresh, script) == 'end\n'
    assert Job(fresh, 'j').text('cmd') == script
    j = job(fresh, 'k')
    assert errno_of(write, j / 'cmd', '#' * ((1 << 20) + 1)) == 'EFBIG'
    assert j.state() == 'new'


def test_a_tenants_jobs_take_a_bounded_part_of_the_daemons_memory(mount):
    d = mount()
    s, other = d.session('alice/coder/s1'), d.session('bob/coder/s1')
    text = 'A=' + 'x' * 1000000
    jobs = []
    while (r := errno_of(lambda: write(jobs[-1] / 'env', text)) if jobs else None) is None:
        jobs.append(job(s, f'j{len(jobs)}'))
        assert len(jobs) < 1000
    assert r == 'EDQUOT' and 'memory' in s.error()
    if SANITIZER == 'none':
        assert d.memory_bytes() < 400 << 20
    assert output(other, 'echo ran\n' + '#' * 500000) == 'ran\n'
    os.rmdir(jobs[0].dir)
    assert output(s, 'echo $A', name='after', env='A=b') == 'b\n'


def test_texts_of_ended_jobs_take_disk_that_is_counted(mount):
    """Ten scripts of a megabyte are more than half of the spool; they can be read all the same, and make room."""
    d = mount(spool_max='8M')
    s = d.session()
    script = 'true\n' + '#' * 1000000
    done = 0
    while Job(s, f'j{done}').make().start(script).exit() == '0':
        done += 1
        assert done < 10
    assert done >= 4 and 'spool_max' in Job(s, f'j{done}').exit()
    d.restart()
    assert Job(s, 'j1').text('cmd') == script
    assert output(s, 'echo short', name='short') == 'short\n'
    for i in range(done):
        os.rmdir(Job(s, f'j{i}').dir)
    assert output(s, script, name='again') == ''


def test_a_command_with_a_nul_byte_is_refused(fresh):
    j = job(fresh)
    assert errno_of(put, j / 'cmd', b'echo a\0b') == 'EINVAL'
    assert j.state() == 'new'


@pytest.mark.local('an image has what it has')
def test_a_job_cannot_see_what_is_not_its_own(fresh):
    out = output(fresh, 'ls -d /home /root /srv /media 2>/dev/null; ls /; id -u')
    assert '/home' not in out and '/root' not in out


@pytest.mark.local('a container has ids of its own')
def test_a_job_is_never_root_to_the_kernel(fresh):
    j = job(fresh).start('id -u; sleep 98765.4321')
    j.wait_output('\n')
    pid = wait_for(lambda: processes_with('98765.4321'))[0]
    with open(f'/proc/{pid}/status') as f:
        status = dict(line.split(':', 1) for line in f)
    assert '0' not in status['Uid'].split() and '0' not in status['Gid'].split()
    assert int(status['CapPrm'], 16) == 0 and int(status['CapBnd'], 16) == 0
    assert status['NoNewPrivs'].strip() == '1'
    j.ctl('kill')
    j.exit()


def test_many_jobs_run_side_by_side(fresh):
    made = [job(fresh, f'j{i}').start(f'echo {i}; echo {i} >> lines') for i in range(40)]
    for i, j in enumerate(made):
        assert j.exit() == '0'
        assert j.text('stdout') == f'{i}\n'
    assert sorted(read(fresh / 'lines').split()) == sorted(str(i) for i in range(40))


def test_a_job_that_leaves_a_daemon_ends_and_the_daemon_goes_on(fresh):
    assert run(fresh, '(setsid sh -c "while :; do date > alive; sleep 0.05; done" >/dev/null 2>&1 &)')[0] == '0'
    wait_for(lambda: os.path.exists(fresh / 'alive'))
    old = os.stat(fresh / 'alive').st_mtime_ns
    wait_for(lambda: os.stat(fresh / 'alive').st_mtime_ns != old)


def test_closing_its_stdout_does_no_harm(fresh):
    assert run(fresh, 'exec >&- 2>&-; echo x > made; exit 4')[0] == '4'
    assert read(fresh / 'made') == 'x\n'


def test_the_error_of_a_refused_write_is_told(fresh):
    j = job(fresh)
    assert errno_of(put, j / 'timeout', 'soon') == 'EINVAL'
    assert 'seconds' in fresh.error()
    assert errno_of(put, j / 'tty', '80') == 'EINVAL'
    assert errno_of(put, j / 'ctl', 'dance\n') == 'EINVAL'
    assert errno_of(put, j / 'ctl', 'signal NONE\n') == 'EINVAL'
    assert errno_of(put, j / 'ctl', 'kill\n') == 'ESRCH'


def test_running_jobs_are_counted(fresh, shared_daemon):
    j = job(fresh).start('sleep 1000')
    j.wait_state('running')
    assert fresh.status()['running_jobs'] == 1
    line = next(l for l in read(f'{shared_daemon.mnt}/.wsm/workspaces').splitlines() if l.startswith(fresh.id()))
    assert line.split('\t')[-1] == '1'
    j.ctl('kill')
    j.exit()
    wait_for(lambda: fresh.status()['running_jobs'] == 0)


def test_append_is_a_way_of_writing_too(fresh):
    j = job(fresh)
    fd = os.open(j / 'cmd', os.O_WRONLY | os.O_APPEND)
    os.write(fd, b'echo a\n')
    os.write(fd, b'echo b\n')
    os.close(fd)
    assert j.out() == 'a\nb\n'
    append(job(fresh, 'k') / 'cmd', 'echo c')
    assert Job(fresh, 'k').out() == 'c\n'


def test_exit_comes_after_all_output(fresh):
    for i in range(10):
        j = job(fresh, f'j{i}').start('head -c 300000 /dev/zero')
        assert j.exit() == '0'
        assert os.stat(j / 'stdout').st_size == 300000
        assert len(j.raw('stdout')) == 300000


def test_what_a_job_wrote_is_visible_when_exit_can_be_read(fresh):
    for i in range(200):
        write(fresh / f'f{i}', 'old')
    os.makedirs(fresh / 'gone')
    for i in range(200):
        assert os.stat(fresh / f'f{i}').st_size == 3
    for round_ in range(5):
        code = run(fresh, f'for i in $(seq 0 199); do echo longer{round_} > f$i; done; rm -rf gone; '
                          f'rm -f new*; touch new{round_}', name=f'r{round_}')[0]
        assert code == '0'
        names = set(os.listdir(fresh.path))
        assert f'new{round_}' in names and 'gone' not in names and f'new{round_ - 1}' not in names
        for i in range(200):
            assert os.stat(fresh / f'f{i}').st_size == 8
            if i % 20 == 0:
                assert read(fresh / f'f{i}') == f'longer{round_}\n'
        assert not os.path.exists(fresh / 'gone')


def test_wsm_like_clients_need_only_files(fresh):
    """The whole life of a job in a shell, with separate calls."""
    script = f'''
        set -e
        cd {fresh.inner}/jobs
        mkdir t
        printf 'A=5\\n' > t/env
        cat > t/cmd <<'END'
        echo $A
        exit 3
END
        cat t/exit
        cat t/stdout
        rmdir t
    '''
    done = subprocess.run(['sh', '-c', script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ('3\n5\n', '', 0)
