"""Settings: what a person sets on this machine, and what `.env.example` says of it."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from pydantic import SecretStr

from fleet_agent.errors import FixSetup
from fleet_agent.settings import (
    Fallback,
    Settings,
    demand_must_have_one_source,
    missing_for_up,
    simulated,
    variable,
)

EXAMPLE = Path(__file__).parents[1] / ".env.example"
SECRET = "made-up-secret"


@pytest.fixture(autouse=True)
def clean_environment() -> Generator[pytest.MonkeyPatch]:
    """No test may see what the machine sets, nor leave anything behind."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("FLEET_")]:
            patch.delenv(name)
        yield patch


def texts_of_example() -> dict[str, str]:
    """Variable → the comment above it, as one line."""
    texts: dict[str, str] = {}
    comment: list[str] = []
    for line in EXAMPLE.read_text().splitlines():
        if assigned := re.match(r"#(FLEET_\w+)=", line):
            texts[assigned[1]] = " ".join(comment)
        comment = [*comment, line.removeprefix("# ")] if line.startswith("# ") else []
    return texts


def test_the_example_file_has_every_setting_with_its_own_text_and_no_other() -> None:
    assert texts_of_example() == {variable(name): field.description for name, field in Settings.model_fields.items()}


def test_the_example_file_with_everything_uncommented_is_what_holds_without_it(tmp_path: Path) -> None:
    dotenv = tmp_path / ".env"
    dotenv.write_text(re.sub(r"^#(FLEET_)", r"\1", EXAMPLE.read_text(), flags=re.MULTILINE))

    assert Settings.load(dotenv) == Settings.load()


def test_the_environment_wins_over_the_file(tmp_path: Path, clean_environment: pytest.MonkeyPatch) -> None:
    dotenv = tmp_path / ".env"
    dotenv.write_text("FLEET_FLEET=from-file\nFLEET_MODEL_NAME=from-file\n")
    clean_environment.setenv("FLEET_FLEET", "from-environment")

    settings = Settings.load(dotenv)

    assert (settings.fleet, settings.model_name) == ("from-environment", "from-file")


def test_a_file_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    assert Settings.load(tmp_path / ".env") == Settings.load()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FLEET_FLEET", "Main Fleet"),
        ("FLEET_PREFECT_PORT", "http"),
        ("FLEET_HOOKS_BIND", "8300"),
        ("FLEET_HOOKS_BIND", "http://127.0.0.1:8300"),
        ("FLEET_VAST_URL", "console.vast.ai"),
        ("FLEET_WATCH_EVERY", "9"),
        ("FLEET_BOX_ENV", "{not json"),
        ("FLEET_BOX_ENV", '["a list"]'),
        ("FLEET_MODEL_USD_PER_MILLION_TOKENS_IN", "-1"),
        ("FLEET_MODEL_MAX_OUTPUT_TOKENS_NAME", "tokens"),
        ("FLEET_MODEL_FALLBACKS", "second third"),
        ("FLEET_MODEL_FALLBACKS", "[1]"),
        ("FLEET_MODEL_FALLBACKS", '[{"name": "second", "key": "x"}]'),
        ("FLEET_MODEL_FALLBACKS", '[{"url": "http://other.example/v1"}]'),
        ("FLEET_DEMAND_CURIO_TASKS", "PoRep PSprove"),
        ("FLEET_DEMAND_CURIO_TASKS", "PoRep WdPost"),
        ("FLEET_DEMAND_CURIO_TASKS", "WinPost"),
        ("FLEET_DEMAND_CURIO_TASKS", " "),
    ],
)
def test_a_bad_value_is_one_line_that_names_the_variable(
    name: str, value: str, clean_environment: pytest.MonkeyPatch
) -> None:
    clean_environment.setenv(name, value)

    with pytest.raises(FixSetup) as refused:
        Settings.load()

    assert str(refused.value).startswith(f"{name}: ")
    assert "\n" not in str(refused.value)


def test_a_misspelt_line_of_the_file_is_named(tmp_path: Path) -> None:
    dotenv = tmp_path / ".env"
    dotenv.write_text("FLEET_VAST_KEY=x\n")

    with pytest.raises(FixSetup, match=r"^FLEET_VAST_KEY: no such setting"):
        Settings.load(dotenv)


def secrets_of(settings: Settings) -> set[str]:
    """Every secret in it, however deep."""
    found: set[str] = set()
    for name in Settings.model_fields:
        value = getattr(settings, name)
        parts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, tuple) else [value]
        parts = [part.api_key if isinstance(part, Fallback) else part for part in parts]
        found |= {part.get_secret_value() for part in parts if isinstance(part, SecretStr)}
    return found


def all_set() -> Settings:
    """A value other than the default in every field; `test_every_field_is_set` sees to the every."""
    return Settings(
        fleet="other",
        data_dir=Path("/somewhere/else"),
        database_url=SecretStr(f"postgresql://me:{SECRET}-1@db/fleet"),
        prefect_port=4300,
        prefect_database_url=SecretStr(f"postgresql://me:{SECRET}-2@db/prefect"),
        work_pool="fleet-agent-process",
        hooks_bind="[::1]:8301",
        hooks_public_url="https://fleet.example.net",
        vast_url="http://vast.example",
        vast_api_key=SecretStr(f"{SECRET}-3"),
        box_env={"TOKEN": SecretStr(f"{SECRET}-4")},
        model_url="http://model.example/v1",
        model_name="some-model",
        model_api_key=SecretStr(f"{SECRET}-5"),
        model_usd_per_million_tokens_in=Decimal("0.1"),
        model_usd_per_million_tokens_out=Decimal("0.2"),
        model_max_output_tokens=3000,
        model_max_output_tokens_name="max_completion_tokens",
        model_window_tokens=65536,
        model_fallbacks=(
            Fallback(name="second"),
            Fallback(
                name="third",
                url="http://other.example/v1",
                api_key=SecretStr(f"{SECRET}-8"),
                usd_per_million_tokens_in=Decimal("0.3"),
                usd_per_million_tokens_out=Decimal("0.4"),
                max_output_tokens_name="max_tokens",
                window_tokens=131072,
            ),
        ),
        demand_curio_url=SecretStr(f"postgresql://me:{SECRET}-9@db:5433/yugabyte"),
        demand_curio_tasks=("PSProve", "PoRep"),
        demand_prometheus_url="http://prometheus.example",
        watch_every=30,
        demand_query_pending="a",
        demand_query_running="b",
        demand_query_oldest_pending_seconds="c",
        demand_query_done_per_hour="d",
        demand_query_failed_per_hour="e",
        demand_query_claimed="f",
        demand_query_retrying="g",
        demand_query_final_failures_per_hour="h",
        demand_query_dead_workers="i",
        demand_query_proof_p95_seconds="j",
        demand_query_market_waiting="k",
        demand_query_market_computing="l",
        demand_query_market_unsubmitted="m",
        demand_query_market_orphaned="n",
        demand_query_market_slots="o",
        notify_urls=(SecretStr(f"ntfy://{SECRET}-6"), SecretStr(f"ntfy://{SECRET}-7")),
    )


def test_every_field_is_set_by_the_helper_of_these_tests() -> None:
    default = Settings()
    assert [name for name in Settings.model_fields if getattr(all_set(), name) == getattr(default, name)] == []


def test_no_secret_shows_when_settings_are_printed() -> None:
    assert SECRET in str(secrets_of(all_set()))
    assert SECRET not in f"{all_set()} {all_set()!r}"


def test_settings_survive_the_way_through_an_environment(clean_environment: pytest.MonkeyPatch) -> None:
    for name, value in all_set().environment().items():
        clean_environment.setenv(name, value)

    assert Settings.load() == all_set()


def test_a_name_is_short_for_a_model_on_the_same_server(clean_environment: pytest.MonkeyPatch) -> None:
    clean_environment.setenv("FLEET_MODEL_FALLBACKS", '["second", {"name": "third"}]')

    assert Settings.load().model_fallbacks == (Fallback(name="second"), Fallback(name="third"))


def test_what_a_fallback_leaves_out_is_as_for_the_first_model() -> None:
    first, second, third = all_set().models

    assert (first.name, second.name) == ("some-model", "second")
    assert replace(second, name="some-model") == first
    assert (third.url, third.usd_per_million_tokens_in, third.window_tokens) == (
        "http://other.example/v1",
        Decimal("0.3"),
        131072,
    )


def test_the_key_of_one_server_never_goes_to_another() -> None:
    elsewhere = all_set().model_copy(
        update={"model_fallbacks": (Fallback(name="other", url="http://other.example/v1"), Fallback(name="same"))}
    )

    first, other, same = elsewhere.models
    assert other.api_key is None
    assert same.api_key == first.api_key is not None


def test_without_a_first_model_there_are_none() -> None:
    assert Settings(model_fallbacks=(Fallback(name="second"),)).models == ()


def test_a_demo_keeps_nothing_that_reaches_the_real_world() -> None:
    real = all_set()
    demo = real.model_copy(update=simulated(vast_url="http://127.0.0.1:1", model_url="http://127.0.0.1:2/v1"))

    kept = {name for name in Settings.model_fields if getattr(demo, name) == getattr(real, name)}

    # The tree itself sets the folder, the databases and the port for webhooks of a demo.
    assert kept == {
        "fleet",
        "data_dir",
        "database_url",
        "prefect_port",
        "prefect_database_url",
        "work_pool",
        "hooks_bind",
        "watch_every",
        "model_max_output_tokens",
    }


def test_what_is_missing_for_up_is_said_with_what_it_is_and_how_to_get_it() -> None:
    assert [line.partition(":")[0] for line in missing_for_up(Settings())] == [
        "FLEET_VAST_API_KEY",
        "FLEET_MODEL_URL",
        "FLEET_MODEL_NAME",
        "FLEET_DEMAND_CURIO_URL or FLEET_DEMAND_PROMETHEUS_URL",
    ]
    assert missing_for_up(all_set()) == []


@pytest.mark.parametrize("unset", ["demand_curio_url", "demand_prometheus_url"])
def test_demand_has_one_source_and_either_will_do(unset: str) -> None:
    """Control: with both, nobody could say which one was meant."""
    both = all_set()
    one = both.model_copy(update={unset: None})

    demand_must_have_one_source(one)
    assert missing_for_up(one) == []
    with pytest.raises(FixSetup, match="FLEET_DEMAND_CURIO_URL and FLEET_DEMAND_PROMETHEUS_URL are both set → unset"):
        demand_must_have_one_source(both)


def test_the_tasks_of_curio_are_named_with_spaces_between(clean_environment: pytest.MonkeyPatch) -> None:
    clean_environment.setenv("FLEET_DEMAND_CURIO_TASKS", " PSProve  PoRep ")

    assert Settings.load().demand_curio_tasks == ("PSProve", "PoRep")


def test_another_fleet_is_the_same_but_for_its_name() -> None:
    assert all_set().with_fleet("second") == all_set().model_copy(update={"fleet": "second"})

    with pytest.raises(FixSetup, match="'Second Fleet' cannot be the name of a fleet"):
        all_set().with_fleet("Second Fleet")


def test_an_address_to_listen_at_is_a_host_and_a_port() -> None:
    assert Settings().hooks_address == ("127.0.0.1", 8300)
    assert all_set().hooks_address == ("::1", 8301)


def test_the_demos_folder_is_a_sibling_and_never_the_same() -> None:
    assert all_set().demo_data_dir == Path("/somewhere/else-demo")
