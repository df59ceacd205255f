# SPDX-License-Identifier: Apache-2.0
"""What starts a job, and what does not: every way in which programs write a file."""

import json
import os
import shutil
import signal

import pytest

from harness import Child, as_alice, errno_of, open_errno, put, read, run as run_program, sh, wait_for, write
from jobs import Job, job, output

pytestmark = pytest.mark.root


def ran_once(session, j, text='ran\n'):
    assert j.exit() == '0', j.text('stderr')
    assert j.text('stdout') == text
    return True


@pytest.mark.parametrize('line', [
    'echo "echo ran" > {d}/cmd',
    'echo "echo ran" >> {d}/cmd',
    'echo "echo ran" | tee {d}/cmd > /dev/null',
    'cat > {d}/cmd <<END\necho ran\nEND',
    '{{ echo "echo -n r"; echo "echo an"; }} > {d}/cmd',
    '{{ echo "echo -n r"; cat {d}/../../../part; }} > {d}/cmd',
    'exec 3> {d}/cmd; echo "echo -n r" >&3; sh -c "echo echo an >&3"; exec 3>&-',
    'printf "echo ran" > {d}/cmd',
    'cp {d}/../../../whole {d}/cmd',
    'cat {d}/../../../whole > {d}/cmd',
    'dd if={d}/../../../whole of={d}/cmd bs=1 status=none',
    'curl -s -o {d}/cmd file://{d}/../../../whole',
    'install -m 644 {d}/../../../whole {d}/x && mv {d}/x {d}/cmd',
    'sed -e "" {d}/../../../whole > {d}/cmd',
    'rsync --inplace {d}/../../../whole {d}/cmd',
    'rsync {d}/../../../whole {d}/cmd',
    'python3 -c "open(\'{d}/cmd\', \'w\').write(\'echo ran\\n\')"',
    'perl -e \'open F, ">", "{d}/cmd"; print F "echo ran"; close F\'',
])
def test_every_way_of_writing_starts_it_once(fresh, line):
    program = line.split()[0]
    if program in ('curl', 'rsync', 'perl') and not shutil.which(program):
        pytest.skip(f'{program} is not on this machine')
    fresh.use()
    write(fresh / 'whole', 'echo ran; echo x >> count\n')
    write(fresh / 'part', 'echo echo an\n'.replace('echo echo', 'echo', 1))
    j = job(fresh)
    sh(line.format(d=j.dir))
    assert ran_once(fresh, j)


def test_node_starts_it(fresh):
    if not shutil.which('node'):
        pytest.skip('node is not on this machine')
    j = job(fresh)
    run_program('node', '-e', f'require("fs").writeFileSync("{j.dir}/cmd", "echo ran\\n")')
    assert ran_once(fresh, j)


def test_sed_in_place_starts_it(fresh):
    j = job(fresh)
    fd = os.open(j / 'cmd', os.O_WRONLY)
    os.close(fd)
    write(j / 'x', 'echo wrong\n')
    sh(f'sed -i s/wrong/ran/ {j.dir}/x && mv {j.dir}/x {j.dir}/cmd')
    assert ran_once(fresh, j)


def test_a_rename_onto_cmd_takes_all_or_nothing(fresh):
    j = job(fresh)
    write(j / 'cmd.new', 'echo ran\n')
    assert j.state() == 'new'
    os.replace(j / 'cmd.new', j / 'cmd')
    assert ran_once(fresh, j)
    assert sorted(os.listdir(j.dir))[:3] == ['argv', 'cmd', 'ctl']
    assert 'cmd.new' not in os.listdir(j.dir)
    assert j.text('cmd') == 'echo ran\n'


def test_a_rename_onto_argv_starts_it(fresh):
    j = job(fresh)
    write(j / 'a', json.dumps(['echo', 'ran']))
    os.rename(j / 'a', j / 'argv')
    assert ran_once(fresh, j)


def test_a_rename_of_something_invalid_onto_argv_changes_nothing(fresh):
    j = job(fresh)
    write(j / 'a', 'nonsense')
    assert errno_of(os.rename, j / 'a', j / 'argv') == 'EINVAL'
    assert j.text('a') == 'nonsense' and j.state() == 'new'


def test_a_rename_onto_a_setting_takes_its_text(fresh):
    j = job(fresh)
    write(j / 'e', 'A=5\n')
    os.rename(j / 'e', j / 'env')
    assert j.state() == 'new'
    assert j.start('echo $A').out() == '5\n'


def test_opening_and_closing_starts_nothing(fresh):
    j = job(fresh)
    os.close(os.open(j / 'cmd', os.O_WRONLY | os.O_TRUNC))
    os.close(os.open(j / 'cmd', os.O_RDWR))
    sh(f': > {j.dir}/cmd')
    assert j.state() == 'new'


def test_nothing_starts_before_the_last_descriptor_is_closed(fresh):
    j = job(fresh)
    fd = os.open(j / 'cmd', os.O_WRONLY)
    copy = os.dup(fd)
    os.write(fd, b'echo ran')
    os.close(fd)
    os.fsync(copy)
    assert j.state() == 'new'
    os.close(copy)
    assert ran_once(fresh, j)


def test_a_child_that_holds_the_descriptor_delays_the_start(fresh):
    j = job(fresh)
    fd = os.open(j / 'cmd', os.O_WRONLY)
    os.write(fd, b'echo ran')
    read_end, write_end = os.pipe()
    child = Child(lambda: os.read(read_end, 1))
    os.close(fd)
    assert j.state() == 'new'
    os.write(write_end, b'x')
    child.result()
    assert ran_once(fresh, j)


def test_ctl_start_starts_at_once(fresh):
    j = job(fresh)
    fd = os.open(j / 'cmd', os.O_WRONLY)
    os.write(fd, b'echo ran')
    j.ctl('start')
    assert ran_once(fresh, j)
    os.close(fd)
    assert j.text('stdout') == 'ran\n'


def test_start_with_nothing_written_is_refused(fresh):
    assert errno_of(job(fresh).ctl, 'start') == 'EINVAL'


def test_a_writer_that_is_killed_starts_what_it_wrote(fresh):
    j = job(fresh)
    read_end, write_end = os.pipe()

    def write_and_hang():
        fd = os.open(j / 'cmd', os.O_WRONLY)
        os.write(fd, b'echo ran')
        os.write(write_end, b'x')
        signal.pause()

    child = Child(write_and_hang)
    os.read(read_end, 1)
    assert j.state() == 'new'
    child.signal(signal.SIGKILL)
    assert ran_once(fresh, j)


def test_an_open_in_which_a_write_failed_starts_nothing(fresh):
    j = job(fresh)
    fd = os.open(j / 'cmd', os.O_WRONLY)
    os.write(fd, b'echo wrong\n')
    assert errno_of(os.pwrite, fd, b'x', (1 << 20) + 5) == 'EFBIG'
    os.close(fd)
    assert j.state() == 'new'
    assert ran_once(fresh, j.start('echo ran'))


def test_a_file_size_is_accepted_and_starts_nothing(fresh):
    j = job(fresh)
    os.truncate(j / 'cmd', 0)
    os.utime(j / 'cmd')
    os.chmod(j / 'cmd', 0o600)
    assert j.state() == 'new'
    fd = os.open(j / 'cmd', os.O_WRONLY)
    os.write(fd, b'echo ran\nexit 5\n')
    os.ftruncate(fd, 9)
    os.close(fd)
    assert ran_once(fresh, j)


def test_cmd_keeps_its_number_and_time_until_it_changes(fresh):
    j = job(fresh)
    first = os.stat(j / 'cmd')
    assert (os.stat(j / 'cmd').st_ino, os.stat(j / 'cmd').st_mtime_ns) == (first.st_ino, first.st_mtime_ns)
    j.start('true')
    j.exit()
    second = os.stat(j / 'cmd')
    assert second.st_ino == first.st_ino and second.st_mtime_ns > first.st_mtime_ns
    assert os.stat(j / 'cmd').st_mtime_ns == second.st_mtime_ns


def test_pieces_may_be_written_at_offsets(fresh):
    j = job(fresh)
    fd = os.open(j / 'cmd', os.O_WRONLY)
    os.pwrite(fd, b'ran\n', 5)
    os.pwrite(fd, b'echo ', 0)
    os.close(fd)
    assert ran_once(fresh, j)


def test_other_files_may_be_made_before_the_start(fresh):
    j = job(fresh)
    write(j / 'notes', 'text')
    assert read(j / 'notes') == 'text'
    assert os.stat(j / 'notes').st_size == 4
    assert 'notes' in os.listdir(j.dir)
    os.rename(j / 'notes', j / 'other')
    assert not os.path.exists(j / 'notes') and read(j / 'other') == 'text'
    os.unlink(j / 'other')
    assert not os.path.exists(j / 'other')
    assert errno_of(os.mkdir, j / 'directory') == 'EPERM'
    assert errno_of(os.symlink, 'x', j / 'link') == 'EPERM'
    j.start('true')
    j.exit()
    assert errno_of(write, j / 'late', 'x') == 'EPERM'


def test_other_files_take_one_mebibyte_together(fresh):
    j = job(fresh)
    write(j / 'a', 'x' * 600000)
    assert errno_of(write, j / 'b', 'x' * 600000) == 'EDQUOT'
    os.unlink(j / 'a')
    os.unlink(j / 'b')
    write(j / 'c', 'x' * 600000)


def test_files_do_not_move_between_a_job_and_the_workspace(fresh):
    fresh.use()
    write(fresh / 'whole', 'echo ran\n')
    j = job(fresh)
    assert errno_of(os.rename, fresh / 'whole', j / 'cmd') == 'EXDEV'
    assert errno_of(os.rename, j / 'cmd', fresh / 'cmd') == 'EXDEV'
    sh(f'mv {fresh.path}/whole {j.dir}/cmd')
    assert ran_once(fresh, j)


def test_an_editor_that_keeps_a_backup_starts_it_once(fresh):
    """As vim does it: the old file becomes the backup, a new one is written, the backup removed."""
    j = job(fresh)
    os.rename(j / 'cmd', j / 'cmd~')
    fd = os.open(j / 'cmd', os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(fd, b'echo ran\n')
    os.fsync(fd)
    os.close(fd)
    os.unlink(j / 'cmd~')
    assert ran_once(fresh, j)


def test_a_text_that_was_renamed_is_not_there_until_it_is_made_again(fresh):
    j = job(fresh)
    write(fresh / 'script', 'echo ran\n')
    sh(f'cp --backup {fresh.path}/script {j.dir}/cmd')
    assert j.exit() == '0' and j.text('stdout') == 'ran\n'
    assert errno_of(os.rename, j / 'cmd', j / 'old') == 'EBUSY'
    assert read(j / 'cmd') == 'echo ran\n'


def test_stdout_and_exit_of_a_job_that_has_not_started_wait_for_it(fresh):
    j = job(fresh)
    out = Child(lambda: read(j / 'stdout'))
    code = Child(lambda: read(j / 'exit'))
    j.start('echo ran')
    assert out.result() == 'ran\n' and code.result() == '0\n'


def test_who_starts_first_wins(fresh):
    j = job(fresh)
    first, second = os.open(j / 'cmd', os.O_WRONLY), os.open(j / 'cmd', os.O_WRONLY)
    os.write(first, b'echo ran; sleep 0.1')
    os.close(first)
    wait_for(lambda: j.state() != 'new')
    assert errno_of(os.write, second, b'echo other') == 'EBUSY'
    os.close(second)
    assert ran_once(fresh, j)


def test_a_limit_fails_the_write_and_names_itself(mount):
    s = mount(max_jobs=1).session()
    first = job(s, 'a').start('sleep 1000')
    j = job(s, 'b')
    assert errno_of(put, j / 'cmd', 'true') == 'EDQUOT'
    assert 'max_jobs' in s.error()
    assert j.state() == 'new'
    first.wait_state('running')
    first.ctl('kill')
    first.exit()
    wait_for(lambda: s.status()['running_jobs'] == 0)
    assert j.start('true').exit() == '0'


def test_a_limit_of_a_workspace_is_its_own(mount):
    d = mount(max_jobs_per_workspace=1)
    a, b = d.session('alice/coder/s1'), d.session('bob/coder/s1')
    job(a).start('sleep 1000').wait_state('running')
    assert errno_of(put, job(a, 'k') / 'cmd', 'true') == 'EDQUOT'
    assert output(b, 'echo x') == 'x\n'


def test_a_read_only_mount_runs_no_jobs(mount):
    d = mount()
    d.session().use()
    d.restart(ro=True)
    assert errno_of(os.mkdir, f'{d.session().inner}/jobs/j') == 'EROFS'
    assert open_errno(f'{d.session().inner}/jobs/new', os.O_RDONLY) == 'EROFS'


@pytest.mark.local('a container has ids of its own')
def test_only_who_may_enter_the_session_runs_jobs_in_it(mount):
    d = mount(allow_other=True, config='[user alice]\nuid = 1\ngid = 1\n[user bob]\nuid = 65534\ngid = 65534\n')
    s = d.session('alice/coder/s1')
    d.session('bob/coder/s1').use()

    def use():
        j = job(s)
        j.start('id -u')
        return read(j / 'exit').strip(), j.text('stdout')

    assert as_alice(use) == ('0', '1\n')
    assert as_alice(lambda: errno_of(os.mkdir, f'{d.mnt}/bob/coder/s1/.wsm/jobs/x')) == 'EACCES'


def test_a_jobs_files_belong_to_the_tenant(mount):
    d = mount(allow_other=True, config='[user alice]\nuid = 1\ngid = 1\n')
    s = d.session('alice/coder/s1')
    assert output(s, 'echo x > made; id -u > uid') == ''
    st = os.stat(s / 'made')
    assert (st.st_uid, st.st_gid) == (1, 1)
    st = os.stat(f'{s.inner}/jobs/j/cmd')
    assert (st.st_uid, st.st_gid) == (1, 1)


@pytest.mark.local('confine')
def test_an_unconfined_job_runs_where_its_files_are(mount):
    d = mount(confine='off')
    s = d.session()
    os.makedirs(s / 'sub')
    assert output(s, 'pwd') == f'{d.basedir}/alice/coder\n'
    assert output(s, 'pwd', name='k', cwd='sub') == f'{d.basedir}/alice/coder/sub\n'


def test_open_errors_leave_it_as_it_was(fresh):
    j = job(fresh)
    assert open_errno(j / 'cmd', os.O_WRONLY | os.O_CREAT | os.O_EXCL) == 'EEXIST'
    assert open_errno(j / 'nothing', os.O_RDONLY) == 'ENOENT'
    assert j.state() == 'new'
