"""Settings: their sources and precedence, and the errors for wrong values."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from counterfoil.domain.steps.definitions import RateLimit, WorkDefaults
from counterfoil.settings import ApiKey, Settings, SettingsError, describe_settings, is_loopback, load_settings

KEY = "ops:admin:s3cret-0123456789"
SIGNING_SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef01234567").decode()


@pytest.fixture(autouse=True)
def _nothing_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable and no file of the user that runs the tests."""
    for name in os.environ:
        if name.upper().startswith("COUNTERFOIL_") or name == "WEBHOOK_BASE_URL":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def config(text: str, name: str = "some.toml") -> Path:
    path = Path(name)
    path.write_text(text, encoding="utf-8")
    return path


def faults(**flags: object) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(**flags)  # type: ignore[arg-type]
    return str(caught.value)


class TestSources:
    def test_without_any_source_the_defaults_stand(self) -> None:
        settings = load_settings()
        assert settings == Settings()
        assert (settings.host, settings.port) == ("127.0.0.1", 8080)
        assert settings.work == WorkDefaults()

    def test_flags_win_over_environment_over_file_over_defaults(self, monkeypatch: pytest.MonkeyPatch) -> None:
        path = config("port = 1\nreaders = 3\nbatch_limit = 5\n")
        monkeypatch.setenv("COUNTERFOIL_PORT", "2")
        monkeypatch.setenv("COUNTERFOIL_READERS", "4")
        settings = load_settings(path, port=3, data=None)
        assert (settings.port, settings.readers, settings.batch_limit) == (3, 4, 5)
        assert settings.data == Path("counterfoil-data")

    def test_the_work_table_is_merged_field_by_field(self, monkeypatch: pytest.MonkeyPatch) -> None:
        path = config("[work]\nmax_retries = 1\njitter = false\n")
        monkeypatch.setenv("COUNTERFOIL_WORK__MAX_RETRIES", "-1")
        monkeypatch.setenv("COUNTERFOIL_WORK__BACKOFF_TYPE", "fixed")
        monkeypatch.setenv("COUNTERFOIL_WORK__PARALLELISM", "null")
        monkeypatch.setenv("COUNTERFOIL_WORK__RATE_LIMIT", '{"count": 5, "per_ms": 100}')
        settings = load_settings(path, work={"deadline_ms": 5})
        rate = RateLimit(count=5, per_ms=100)
        assert settings.work == WorkDefaults(
            max_retries=-1, jitter=False, backoff_type="fixed", deadline_ms=5, rate_limit=rate
        )

    def test_work_defaults_may_be_given_whole(self) -> None:
        assert load_settings(work=WorkDefaults(max_retries=9)).work.max_retries == 9

    def test_the_file_is_the_one_named_or_that_of_the_variable_or_the_one_that_lies_here(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config("port = 1", "counterfoil.toml")
        assert load_settings().port == 1
        monkeypatch.setenv("COUNTERFOIL_CONFIG", str(config("port = 2", "variable.toml")))
        assert load_settings().port == 2
        assert load_settings(config("port = 3", "named.toml")).port == 3

    def test_the_example_directory_is_not_read_by_itself(self) -> None:
        Path("config").mkdir()
        config("port = 1", "config/counterfoil.toml")
        assert load_settings().port == 8080

    @pytest.mark.parametrize(
        ("variables", "expected"),
        [
            ({"WEBHOOK_BASE_URL": "https://hooks.example/a/"}, "https://hooks.example/a"),
            ({"WEBHOOK_BASE_URL": "http://a", "COUNTERFOIL_WEBHOOK_BASE_URL": "http://b"}, "http://b"),
            ({"WEBHOOK_BASE_URL": ""}, ""),
        ],
    )
    def test_the_base_url_has_a_short_variable(
        self, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
    ) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert load_settings().webhook_base_url == expected

    def test_an_empty_variable_counts_as_not_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COUNTERFOIL_PORT", "")
        assert load_settings(config("port = 7")).port == 7

    def test_lists_are_comma_separated_in_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COUNTERFOIL_EGRESS_ALLOW", "169.254.1.0/24, workers.internal")
        settings = load_settings(config('egress_deny = ["10.0.0.0/8", "::1", "db", "*.example"]'))
        assert settings.egress_allow == ["169.254.1.0/24", "workers.internal"]
        assert settings.egress_deny == ["10.0.0.0/8", "::1", "db", "*.example"]

    def test_constructing_settings_reads_nothing_around(self, monkeypatch: pytest.MonkeyPatch) -> None:
        config("port = 1", "counterfoil.toml")
        monkeypatch.setenv("COUNTERFOIL_PORT", "2")
        assert Settings().port == 8080

    def test_every_setting_has_a_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for item in describe_settings():
            if item.name == "secrets":
                continue  # each secret has a variable of its own
            plain = str(item.default) if isinstance(item.default, (str, Path)) else json.dumps(item.default)
            monkeypatch.setenv(item.variable, "" if plain == "[]" else plain)
        assert load_settings() == Settings()


class TestSecrets:
    def test_a_value_or_a_list_of_values_by_name(self) -> None:
        path = config('[secrets]\nstripe = "whsec_a,b"\ngithub = ["new", "old"]\n')
        assert load_settings(path).secrets == {"stripe": ["whsec_a,b"], "github": ["new", "old"]}

    def test_the_environment_has_a_variable_for_each_and_overrides_the_file_one_by_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = config('[secrets]\nstripe = "of the file"\ngithub = "of the file"\n')
        monkeypatch.setenv("COUNTERFOIL_SECRET_STRIPE", "new, old")
        monkeypatch.setenv("COUNTERFOIL_SECRET_MY_VENDOR", "whsec_x")
        monkeypatch.setenv("COUNTERFOIL_SECRET_GITHUB", "")
        assert load_settings(path).secrets == {
            "stripe": ["new", "old"],
            "github": ["of the file"],
            "my_vendor": ["whsec_x"],
        }

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ('secrets = "hidden"', "must be a table of settings, as in [secrets]"),
            ('[secrets]\nStripe = "hidden"', "lower-case letters"),
            ('[secrets]\n"hidden hidden" = "x"', "lower-case letters"),
            ("[secrets]\nit = 5", "it must be a string, or a list of strings"),
            ('[secrets]\nit = ""', "none may be empty"),
            ("[secrets]\nit = []", "none may be empty"),
            ('[secrets]\nit = ["hidden", ""]', "none may be empty"),
            ('[secrets]\nit = " hidden"', "begin or end with a space"),
            ('[secrets]\nit = ["hidden", 5]', "it must be a string, or a list of strings"),
            ('[secrets]\nit = {a = "hidden"}', "it must be a string, or a list of strings"),
            ('[secrets]\nit = "hidden\\u0007"', "printable"),
        ],
    )
    def test_what_is_wrong_is_told_without_a_value(self, text: str, told: str) -> None:
        message = faults(config=config(text))
        assert message.startswith("secrets (file some.toml): ")
        assert told in message
        assert "hidden" not in message

    @pytest.mark.parametrize("value", ["hidden,,hidden", "hidden,", " "])
    def test_the_same_in_the_environment(self, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
        monkeypatch.setenv("COUNTERFOIL_SECRET_IT", value)
        message = faults()
        assert message.startswith("secrets (environment variables COUNTERFOIL_SECRET_IT): it must be")
        assert "hidden" not in message

    @pytest.mark.parametrize("name", ["COUNTERFOIL_SECRETS", "COUNTERFOIL_SECRETS__IT", "COUNTERFOIL_SECRET_"])
    def test_no_other_variable_is_taken_for_a_secret(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        monkeypatch.setenv(name, "hidden")
        message = faults()
        assert f"environment variable {name}: no such setting" in message
        assert "hidden" not in message

    def test_no_text_of_the_settings_shows_one(self) -> None:
        settings = Settings(secrets={"it": "hidden"})
        assert "hidden" not in repr(settings) + str(settings)


class TestWrongValues:
    @pytest.mark.parametrize("value", ["99999", "-1", "http", "80.5"])
    def test_a_wrong_variable_is_named_with_its_value_and_what_is_allowed(
        self, monkeypatch: pytest.MonkeyPatch, value: str
    ) -> None:
        monkeypatch.setenv("COUNTERFOIL_PORT", value)
        expected = f"port = '{value}' (environment variable COUNTERFOIL_PORT): must be a whole number from 0 to 65535"
        assert faults() == expected

    def test_a_wrong_flag_is_named(self) -> None:
        assert faults(batch_limit=0) == "batch_limit = 0 (flag --batch-limit): must be a whole number from 1 to 100000"

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("port = true", "port = True (file some.toml): must be a whole number from 0 to 65535"),
            ("host = 1", "host = 1 (file some.toml): must be a string"),
            ("access_log = 3", "access_log = 3 (file some.toml): must be true or false"),
            ("egress_deny = 3", "egress_deny = 3 (file some.toml): must be a list of strings"),
            ('log_level = "loud"', "log_level = 'loud' (file some.toml): must be one of debug, info, warning, error"),
            ('[work]\njitter = "yes"', "work.jitter = 'yes' (file some.toml): must be true or false"),
            (
                "[work]\nparallelism = 0",
                "work.parallelism = 0 (file some.toml): must be a whole number from 1 upwards",
            ),
            (
                '[work]\nbackoff_type = "no"',
                "work.backoff_type = 'no' (file some.toml): must be one of fixed, linear, exponential",
            ),
            ("work = 3", "work (file some.toml): must be a table of settings, as in [work]"),
            ("prot = 1", "prot (file some.toml): no such setting; did you mean port?"),
            ("_env_file = 1", "_env_file (file some.toml): no such setting"),
            (
                "[work]\nzzz = 1",
                "work.zzz (file some.toml): no such setting; config/counterfoil.toml lists all settings",
            ),
        ],
    )
    def test_what_is_wrong_in_the_file_is_named(self, text: str, expected: str) -> None:
        assert faults(config=config(text)) == expected

    def test_several_faults_are_told_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COUNTERFOIL_READERS", "0")
        with pytest.raises(SettingsError) as caught:
            load_settings(config("port = -1"))
        assert [fault.split()[0] for fault in caught.value.faults] == ["port", "readers"]

    @pytest.mark.parametrize(
        "name", ["COUNTERFOIL_PROT", "COUNTERFOIL_WORK", "COUNTERFOIL_WORK__NOTHING", "counterfoil_x"]
    )
    def test_an_unknown_variable_is_refused(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        monkeypatch.setenv(name, "s3cret")
        message = faults()
        assert message.startswith(f"environment variable {name}: no such setting")
        assert "s3cret" not in message

    def test_the_variables_of_the_command_line_client_are_no_settings_and_no_faults(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COUNTERFOIL_URL", "http://127.0.0.1:8080")
        monkeypatch.setenv("COUNTERFOIL_KEY", "s3cret")
        assert load_settings() == Settings()

    def test_an_unknown_flag_is_refused(self) -> None:
        assert faults(nothing=1).startswith("nothing (flag --nothing): no such setting")

    def test_a_file_that_is_not_there_is_refused(self, tmp_path: Path) -> None:
        assert faults(config=Path("none.toml")) == "config file none.toml: file not found"
        assert "file not found" in faults(config=tmp_path)

    def test_a_file_that_is_no_toml_is_refused_with_the_place(self) -> None:
        assert faults(config=config("port = \n")).startswith("config file some.toml: not valid TOML: ")
        Path("latin.toml").write_bytes(b'host = "\xff"')
        assert faults(config=Path("latin.toml")).startswith("config file latin.toml: not valid TOML: ")

    def test_a_file_that_cannot_be_read_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def denied(*_arguments: object, **_options: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("counterfoil.settings.load.TomlConfigSettingsSource", denied)
        assert faults(config=config("port = 1")) == "config file some.toml: cannot be read: Permission denied"


class TestSingleSettings:
    @pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "localhost", "LOCALHOST"])
    def test_loopback_needs_no_key(self, host: str) -> None:
        assert is_loopback(host)
        assert load_settings(host=host).host == host

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "localhost.example", "box"])
    def test_another_address_needs_a_key(self, host: str) -> None:
        message = faults(host=host)
        assert message.startswith(
            f"host = '{host}' (flag --host): without API keys, the engine listens only on a loopback address"
        )
        assert load_settings(host=host, api_keys=KEY).host == host

    @pytest.mark.parametrize("host", ["", "[::1]", "127.0.0.1:80", "a b", "http://x", "1.2.3.400", "-x"])
    def test_what_is_no_host_is_refused(self, host: str) -> None:
        assert "must be an IP address or a host name" in faults(host=host, api_keys=KEY)

    def test_keys_are_parsed_and_secrets_may_hold_colons(self) -> None:
        text = "a:viewer:one-0123456789-ab, b-2:operator:t:w:o-0123456789,c:reviewer:16-characters-ok"
        settings = load_settings(api_keys=text)
        assert settings.keys == [
            ApiKey("a", "viewer", "one-0123456789-ab"),
            ApiKey("b-2", "operator", "t:w:o-0123456789"),
            ApiKey("c", "reviewer", "16-characters-ok"),
        ]
        assert load_settings().keys == []

    @pytest.mark.parametrize(
        ("text", "fault"),
        [
            ("s3cret", "entry 1 must be name:role:secret"),
            ("a:admin:", "entry 1 must be name:role:secret"),
            (":admin:s3cret", "entry 1 must be name:role:secret"),
            (f"{KEY},", "entry 2 must be name:role:secret"),
            ("a:admin:s3cret\u00e9", "entry 1 must be name:role:secret"),
            ("a:root:s3cret", "entry 1 has an unknown role; must be one of viewer, operator, reviewer, admin"),
            (f"{KEY},ops:viewer:another-0123456789", "two keys have the same name"),
            (f"{KEY},two:viewer:s3cret-0123456789", "two keys have the same secret"),
            ("ops:admin:s", "the secret of key ops is too short: at least 16 characters"),
            (f"{KEY},ci:viewer:s3cret-12345678", "the secret of key ci is too short: at least 16 characters"),
        ],
    )
    def test_wrong_keys_are_refused_without_being_repeated(self, text: str, fault: str) -> None:
        message = faults(api_keys=text)
        assert message.startswith(f"api_keys (flag --api-keys): {fault}")
        assert "s3cret" not in message

    def test_receipt_secrets_are_a_list_with_the_signing_one_first(self) -> None:
        assert load_settings(receipt_secrets="new, old").receipt_secret_list == ["new", "old"]
        assert load_settings().receipt_secret_list == []
        assert faults(receipt_secrets="s3cret,,") == (
            "receipt_secrets (flag --receipt-secrets): must be secrets separated by single commas: one of them is empty"
        )

    def test_a_signing_secret_is_whsec_and_base64(self) -> None:
        assert load_settings(signing_secret=SIGNING_SECRET).signing_secret == SIGNING_SECRET

    @pytest.mark.parametrize("text", ["s3cret", "whsec_", "whsec_s3cret!", "whsec_s3cre", SIGNING_SECRET[6:]])
    def test_another_signing_secret_is_refused_without_being_repeated(self, text: str) -> None:
        message = faults(signing_secret=text)
        rule = "must be whsec_ followed by padded base64, comma separated if several, or empty"
        assert message == f"signing_secret (flag --signing-secret): {rule}"

    @pytest.mark.parametrize(
        ("given", "url", "path"),
        [
            ({}, "sqlite:///counterfoil-data/counterfoil.db", "counterfoil-data/counterfoil.db"),
            ({"data": "/var/lib/x"}, "sqlite:////var/lib/x/counterfoil.db", "/var/lib/x/counterfoil.db"),
            ({"store": "sqlite:///here.db"}, "sqlite:///here.db", "here.db"),
            ({"store": "sqlite:////there/it.db", "data": "x"}, "sqlite:////there/it.db", "/there/it.db"),
        ],
    )
    def test_the_store_is_a_file_by_default_in_the_data_directory(
        self, given: dict[str, str], url: str, path: str
    ) -> None:
        settings = load_settings(**given)  # type: ignore[arg-type]
        assert (settings.store_url, settings.store_path) == (url, Path(path))

    @pytest.mark.parametrize("url", ["postgresql://u:s3cret@db/x", "postgres://u:s3cret@db/x", "postgresql:///x"])
    def test_the_store_may_be_shared(self, url: str) -> None:
        settings = load_settings(store=url)
        assert (settings.store_url, settings.is_shared) == (url, True)
        assert not load_settings().is_shared

    @pytest.mark.parametrize(
        "url",
        [
            *["x.db", "sqlite://x.db", "sqlite:///", "sqlite:///:memory:", "sqlite:///a?mode=ro"],
            *["postgresql:x", "postgresql://u:s3cret@db:port/x", "postgresql+asyncpg://u:s3cret@db/x"],
        ],
    )
    def test_another_store_is_refused(self, url: str) -> None:
        rule = "must be sqlite:///path of a file, postgresql://host/database, or empty"
        assert faults(store=url) == f"store (flag --store): {rule}"

    @pytest.mark.parametrize("url", ["sqlite:///x.db", "u:s3cret@db/x", "postgresql://u:s3cret@db:port/x"])
    def test_words_of_other_nodes_come_by_postgresql_only(self, url: str) -> None:
        message = faults(store="postgresql://u:s3cret@pooler/x", store_listen=url)
        assert message == "store_listen (flag --store-listen): must be postgresql://host/database, or empty"

    @pytest.mark.parametrize(
        "url",
        ["ftp://x", "http://", "http://x:port", "http://u:s3cret@x", "http://x?a", "http://x#a", "http://x y"],
    )
    def test_what_is_no_base_url_is_refused(self, url: str) -> None:
        message = faults(webhook_base_url=url)
        assert "webhook_base_url (flag --webhook-base-url): must be an http:// or https:// URL" in message
        assert "s3cret" not in message

    @pytest.mark.parametrize("item", ["10.0.0.1/8", "10.0.0.0/33", "a/b", "*", "a.*.b", "1.2.3.256", "1-2", "a-"])
    @pytest.mark.parametrize("setting", ["egress_allow", "egress_deny", "egress_only"])
    def test_what_is_neither_network_nor_name_is_refused(self, setting: str, item: str) -> None:
        assert f"'{item}' must be a network such as 10.0.0.0/8" in faults(**{setting: ["ok.example", item]})

    def test_levels_and_formats_may_be_written_in_capitals(self) -> None:
        settings = load_settings(log_level="WARNING", log_format="Json")
        assert (settings.log_level, settings.log_format) == ("warning", "json")


class TestSecrecy:
    def test_no_representation_shows_a_secret(self) -> None:
        settings = load_settings(
            api_keys=KEY,
            receipt_secrets="s3cret",
            signing_secret=SIGNING_SECRET,
            store="postgresql://u:s3cret@pooler/x",
            store_listen="postgresql://u:s3cret@db/x",
        )
        shown = f"{settings!r} {settings} {settings.keys}"
        assert "s3cret" not in shown
        assert SIGNING_SECRET not in shown

    def test_the_library_s_own_error_shows_no_value_either(self) -> None:
        with pytest.raises(ValidationError) as caught:
            Settings(api_keys="a:root:s3cret", signing_secret="s3cret", store="mysql://u:s3cret@db/x")
        assert "s3cret" not in str(caught.value)
