# SPDX-License-Identifier: Apache-2.0
"""The benchmark runs, and the requests that a file costs are as few as the documents say. A count
does not depend on how busy the machine is; no time is looked at here."""

import json
import os
import subprocess
import sys

import pytest

import harness
from engine import running_engine

sys.path.insert(0, f'{harness.CHECKOUT}/tests/bench')
# pylint: disable=wrong-import-position
import commands  # noqa: E402
import dockerways  # noqa: E402
import report  # noqa: E402

pytestmark = pytest.mark.root

COMMAND = f'{harness.CHECKOUT}/tests/bench/files'
JOBS_COMMAND = f'{harness.CHECKOUT}/tests/bench/jobs'
DOCKER_COMMAND = f'{harness.CHECKOUT}/tests/bench/docker'
KNOWN_OPEN = 'open + read + close of a known file'
KNOWN_STAT = 'stat of a known file'


def run_bench(place, *words, command=COMMAND):
    out = f'{place}/figures.json'
    done = subprocess.run([sys.executable, command, '--quick', '--build', harness.BUILD, '--dir', place, '--json', out,
                           *words], capture_output=True, text=True, timeout=140, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with open(out, encoding='utf-8') as f:
        return json.load(f), done.stdout


@pytest.fixture(scope='module')
def figures(top):
    place = f'{top}/bench'
    os.mkdir(place)
    found, text = run_bench(place)
    left = os.listdir(place)
    harness.remove_tree(place)
    assert left == ['figures.json'], 'the benchmark left something behind'
    assert not harness.processes_of(place)
    return found, text


def requests(figures, what, variant):
    cost, = (c for c in figures[0]['costs'] if c['what'] == what and c['variant'] == variant)
    return {op: n for op, n in cost['requests'].items() if n > 0.1}


@pytest.mark.timeout(180)
def test_the_benchmark_measures_every_group_beside_the_native_directory(figures):
    found, text = figures
    wanted = {'small', 'tree', 'clients', 'sharing'}
    assert wanted <= set(found['groups']) <= wanted | {'fio'}
    for name, rows in found['groups'].items():
        for row in rows:
            variants = {report.WSMFS, report.PLAIN} | ({report.NATIVE} if name != 'sharing' else set())
            assert variants <= set(row['values']), row
            assert all(v > 0 for values in row['values'].values() for v in values), row
            assert row['title'] in text


@pytest.mark.timeout(180)
def test_opening_reading_and_closing_a_known_file_is_one_request(figures):
    if not figures[0]['passthrough']:
        pytest.skip('no passthrough here')
    found = requests(figures, KNOWN_OPEN, report.WSMFS)
    assert list(found) == ['open'] and found['open'] == pytest.approx(1, abs=0.02)


@pytest.mark.timeout(180)
def test_without_passthrough_the_data_is_one_request_more(figures):
    found = requests(figures, KNOWN_OPEN, report.PLAIN)
    assert sorted(found) in (['open'], ['open', 'read'])
    assert all(n == pytest.approx(1, abs=0.02) for n in found.values())


@pytest.mark.timeout(180)
@pytest.mark.parametrize('variant', [report.WSMFS, report.PLAIN])
def test_a_stat_of_a_known_file_is_no_request(figures, variant):
    assert requests(figures, KNOWN_STAT, variant) == {}


def test_ratios_compare_figures_of_the_same_round():
    row = report.Row('x', 'ms', report.LESS, wsmfs_native=1.5, wsmfs_peer=1.0)
    for native, wsmfs, bindfs in ((10, 12, 20), (100, 130, 200), (1000, 1400, 500)):
        row.add(report.NATIVE, native)
        row.add(report.WSMFS, wsmfs)
        row.add('bindfs', bindfs)
    assert row.ratio(report.WSMFS, report.NATIVE) == 1.3
    assert row.better_peer() == 'bindfs'
    assert row.ratios()['wsmfs_peer'] == 0.65
    assert row.met() == 'yes'
    row.aims['wsmfs_native'] = 1.25
    assert row.met() == 'no' and set(row.missed()) == {'wsmfs_native'}


def test_an_aim_that_nothing_can_be_compared_with_is_neither_met_nor_missed():
    row = report.Row('x', 'MiB/s', report.MORE, wsmfs_peer=1.0)
    row.add(report.WSMFS, 5)
    assert row.met() == ''


def test_the_document_has_a_place_for_every_table(tmp_path):
    with open(f'{harness.CHECKOUT}/docs/benchmarks.md', encoding='utf-8') as f:
        text = f.read()
    for weather in ('quiet', 'busy'):
        copy = tmp_path / f'{weather}.md'
        copy.write_text(text)
        row = report.Row('the row', 'ms', report.LESS)
        row.add(report.NATIVE, 2)
        row.add(report.WSMFS, 4)
        cost = report.Cost(True)
        cost.cpu_us, cost.switches, cost.requests = [1.0], [2.0], {'open': 1.0}
        costly, others = dict.fromkeys(('small', 'tree'), [row]), dict.fromkeys(('fio', 'clients', 'sharing'), [row])
        for _ in range(2):  # what stands there is replaced
            report.write_document(str(copy), weather, costly, {('the row', report.WSMFS): cost}, 'FACTS')
            report.write_document(str(copy), weather, others, {}, 'FACTS')
        written = copy.read_text()
        assert written.count('| the row | ms | 2.00 | 4.00 | 2.00 |') == 5
        assert written.count('| the row | wsmfs | 1.00 | 2.00 | 1.00 | open |') == 2
        assert written.count('FACTS') == 7
        assert (tmp_path / f'benchmarks/fio-{weather}.svg').read_text().startswith('<svg')


@pytest.mark.timeout(180)
def test_the_benchmark_of_jobs_measures_every_group_confined_and_not(top):
    place = f'{top}/bench-jobs'
    os.mkdir(place)
    found, text = run_bench(place, command=JOBS_COMMAND)
    left = os.listdir(place)
    assert left == ['figures.json'], 'the benchmark left something behind'
    assert not harness.processes_of(place) and not harness.sandboxes_of(place)
    harness.remove_tree(place)
    assert list(found['groups']) == list(commands.GROUPS)
    for rows in found['groups'].values():
        for row in rows:
            assert {commands.OFF, commands.CONFINED} <= set(row['values']), row
            assert all(v > 0 for values in row['values'].values() for v in values), row
            assert row['title'] in text
    for name, base in (('job latency', commands.SPAWN), ('job rate', commands.SPAWN), ('job output', commands.PIPE)):
        assert found['groups'][name][0]['ratios'][commands.CONFINED], name


def test_an_aim_for_jobs_is_met_by_the_figure_or_by_the_ratio():
    row = commands.Figures('x', 'a second', True, commands.SPAWN, aim=1000, aim_ratio=0.5)
    for way, value in ((commands.SPAWN, 1500), (commands.OFF, 800), (commands.CONFINED, 700)):
        row.add(way, value)
    assert (row.met(commands.SPAWN), row.met(commands.OFF), row.met(commands.CONFINED)) == ('', 'yes', 'no')
    row.values[commands.CONFINED] = [1100]
    assert row.met(commands.CONFINED) == 'yes'
    less = commands.Figures('x', 'ms', False, aim=3)
    less.add(commands.OFF, 3.1)
    assert less.met(commands.OFF) == 'no'


def test_the_document_has_a_place_for_every_table_of_jobs(tmp_path):
    with open(f'{harness.CHECKOUT}/docs/benchmarks.md', encoding='utf-8') as f:
        text = f.read()
    for weather in ('quiet', 'busy'):
        copy = tmp_path / f'{weather}.md'
        copy.write_text(text)
        row = commands.Figures('the row', 'ms', False, commands.SPAWN)
        row.add(commands.SPAWN, 2)
        row.add(commands.CONFINED, 4)
        for _ in range(2):  # what stands there is replaced
            commands.write_document(str(copy), weather, dict.fromkeys(commands.GROUPS, [row]), 'FACTS')
        written = copy.read_text()
        assert written.count('| the row | wsmfs | ms | 4.00 | 2.00 of posix_spawn |') == len(commands.GROUPS)
        assert written.count('FACTS') == len(commands.GROUPS)


@pytest.mark.timeout(180)
def test_the_benchmark_of_containers_measures_every_group_and_ends_its_engine(top):
    with running_engine():  # else it is skipped
        pass
    place = f'{top}/bench-docker'
    os.mkdir(place)
    found, text = run_bench(place, command=DOCKER_COMMAND)
    left = os.listdir(place)
    assert left == ['figures.json'], 'the benchmark left something behind'
    assert not harness.processes_of(place)
    harness.remove_tree(place)
    assert list(found['groups']) == list(dockerways.GROUPS)
    for name, rows in found['groups'].items():
        for row in rows:
            assert row['title'] in text and row['values'], row
        if name != 'docker at scale':
            assert any(row['ratios'][way] for row in rows for way in dockerways.Figures.ours if way in row['values']), name


def test_an_aim_for_containers_is_a_figure_or_a_ratio():
    row = dockerways.Figures('x', 'ms', False, dockerways.EXEC, aim_ratio=0.05)
    for value in (60, 80):
        row.add(dockerways.EXEC, value)
        row.add(dockerways.CMD, value / 25)
        row.add(dockerways.ARGV, value / 15)
    assert [row.met(way) for way in (dockerways.EXEC, dockerways.CMD, dockerways.ARGV)] == ['', 'yes', 'no']
    more = dockerways.Figures('x', 'MiB/s', True, dockerways.LOCAL, aim_ratio=0.9)
    for value in (100, 200):
        more.add(dockerways.LOCAL, value)
        more.add(dockerways.WSMFS, value * 0.95)
    assert more.met(dockerways.WSMFS) == 'yes'
    idle = dockerways.Figures('x', 'ms', False, aim=0)
    idle.add(dockerways.WSMFS, 0)
    assert idle.met(dockerways.WSMFS) == 'yes'
    idle.values[dockerways.WSMFS] = [0.1]
    assert idle.met(dockerways.WSMFS) == 'no'


def test_the_document_has_a_place_for_every_table_of_containers(tmp_path):
    copy = tmp_path / 'copy.md'
    with open(f'{harness.CHECKOUT}/docs/benchmarks.md', encoding='utf-8') as f:
        copy.write_text(f.read())
    row = dockerways.Figures('the row', 'ms', False, dockerways.EXEC)
    for value in (2, 3, 4):
        row.add(dockerways.EXEC, value)
        row.add(dockerways.WSMFS, value / 2)
    for _ in range(2):  # what stands there is replaced
        dockerways.write_document(str(copy), dict.fromkeys(dockerways.GROUPS, [row]), 'FACTS')
    written = copy.read_text()
    assert written.count('| the row | wsmfs | ms | 1.50 | 1.25 to 1.75 | 0.500 of docker exec |') == len(dockerways.GROUPS)
    assert written.count('FACTS') == len(dockerways.GROUPS)
