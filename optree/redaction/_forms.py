"""Credentials that are recognised by their form, and names of credentials, by their words: the two tables.

The facts (prefix, alphabet, length) are the issuers' own, and those that the rule sets of gitleaks and detect-secrets agree on.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from optree._patterns import Pattern

# Where a short prefix may begin: at a word's start, also behind an escape (\n); what is written longer is read first.
_ESCAPE = r"(?<=\\[nrtbfave0])"
_START = rf"(?:(?<![A-Za-z0-9])|{_ESCAPE})"
_RUN = r"(?=[\w./+-]{6})"
_BLANK = r"[ \t]{1,8}"
_WORD = "(?:[A-Z]?[a-z]++|[A-Z]++)"
_NOT_A_WORD = rf"(?!{_WORD}(?:/{_WORD}){{1,8}}(?![\w+/=]))(?:(?=[^\s0-9+/=]{{0,256}}[0-9+/=])|(?=[A-Z]*+[a-z]++[A-Z]++[a-z]++[A-Z]))"
_NO_CLASS = r"(?!(?:[a-z]{1,14}[-_]{1,2}){1,8}[a-z]{1,14}(?:-\d{1,2})?(?![\w-]))"
"""Nor is a class of a style sheet one: ``sk-text-repr-fallback``."""
_NO_PLAIN_WORD = "(?=[A-Za-z.~+/-]{0,256}[0-9=_])|(?=[A-Z]*+[a-z]++[A-Z]++[a-z]++[A-Z])|(?=[A-Za-z]{24})"
_USER = r"(?!(?P<user>[\w-]{1,64}):(?P=user)(?![^\s\"']))(?!\d{1,10}:\d{1,10}(?![^\s\"']))[^\s\"':@-][^\s\"':@]{0,64}+:[^\s\"']{1,256}"
"""Not a user and the group of that name, nor numbers of both, as containers take them: ``-u www-data:www-data``."""
_WITH_SLASH = r"(?!(?:\d{1,5}|port)[/?#]|[\[{$<(])[^\s@\"'<>]{1,256}"
"""A password with a slash, not a port."""
_PROJECT = (
    r"sk-(?:proj|svcacct|admin|None|ant)-(?:(?=[\w-]{20})(?=[\w-]{0,64}[A-Z])(?=[\w-]{0,64}[A-Za-z]\d{1,4}[A-Za-z])"
    r"|(?=[A-Za-z]{0,19}\d)[A-Za-z0-9]{20})"
)
"""Not a name that ends in "task" or "disk"."""
_NO_BLOB = r"(?<!:AAAA[\w-]{31})(?=[\w-]{1,16}(?![\w-]))"
"""Nor a public key of SSH."""
_BREAK = r"(?:\s|\\{1,15}[nr])"
_PEM = "-BEGIN[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_PEM_END = "-END[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_PEM_BODY = rf"(?:(?:{_BREAK}*+[A-Za-z0-9+/=]{{40,}})++(?:{_BREAK}*+[A-Za-z0-9+/=]+)?)?"  # of one that was cut off
_GIVEN_IN_URL = r"(?=//[^\s/:@]{0,256}+:[^\s@]{0,256}@)"
_ALONE_IN_URL = r"(?=[^@]{0,256}\d)(?:(?=[^@]{0,256}[a-z])(?=[^@]{0,256}[A-Z])|(?=[a-z0-9]{24,256}@|[A-Z0-9]{24,256}@))[\w-]{20,256}"
_NO_VARIABLE = r"(?![$<{%(*[])"
_GAP = r"(?:\s|\\{1,15}[nrt]){1,16}"
_NETRC = rf"(?!{_GAP}learning){_GAP}[^\s\\]{{1,256}}{_GAP}login{_GAP}[^\s\\]{{1,128}}{_GAP}(?:account{_GAP}[^\s\\]{{1,128}}{_GAP})?password"
_SQL = (
    rf"{_BLANK}(?:(?:WITH|with){_BLANK}[\"'`]?\w{{1,64}}[\"'`]?{_BLANK})?(?:(?:BY|by){_BLANK})?(?:(?:PASSWORD|password){_BLANK})?"
    rf"\\{{0,15}}(?P<quote>[\"']){_NO_VARIABLE}(?:(?<!fied by .)|(?=\S{{0,256}}\d))(?P<secret>[^\"'\\\n]{{1,256}})(?=\\{{0,15}}(?P=quote))"
)
"""In small letters "identified by" may be about anything."""
_COMMAND = (
    rf"(?:(?<=sshpass){_BLANK}-p[ \t]{{0,4}}"
    rf"|(?<!sshpass)[a-z_-]{{0,16}}(?={_BLANK}-)(?:{_BLANK}(?!-p)[^\s|;&\"'\\]{{1,128}}){{0,16}}{_BLANK}-p(?!\d{{1,5}}:\d))"
    rf"(?P<quoted>\\{{0,15}}[\"'])?{_NO_VARIABLE}(?P<secret>(?(quoted)[^\"'\\\n]|[^\s\"'\\|;&]){{1,256}})"
)
_BOTS = tuple(rf"[MNO][DTjz][AEIMQUYcgk][\w-]{{{size}}}\." for size in (20, 21, 23))
"""Begins with a number of 17 to 19 digits in base64."""
_BOTS_BEGIN = tuple(f"{first}{second}{third}" for first in "MNO" for second in "DTjz" for third in "AEIMQUYcgk")
_LONGEST = 128
_NAME_WORD = Pattern(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_KEYS = (
    "api|access|account|admin|anthropic|app|application|auth|azure|client|consumer|deploy|encryption|functions?|gemini|google|groq|license|master"
    "|mistral|openai|openrouter|private|secret|service|shared|signing|ssh|storage|subscription"
)
_HELD = "access|api|auth|bearer|csrf|id|oauth|refresh|session|xsrf"
_LINGUISTIC = (
    "bos|cancel|cancellation|cls|completion|continuation|cursor|cut|end|eos|first|input|last|mask|max|min|new|next|num|output|pad|page|per|prompt"
    "|sep|skip|special|start|stop|sync|this|total|unk|unknown"
)
_ABOUT = (
    "age|alg(?:orithms?)?|at|audience|budget|chars|counts?|description|domain|enabled|endpoint|error|expired|expires|expir(?:ation|y)|field"
    "|file(?:name)?|format|index|issuer|kind|label|len|length|limits?|method|mode|names?|path|policy|present|provider|required|scheme|scopes?"
    "|size|status|total|ttl|types?|uri|url|usage|valid|version"
)
"""A name that ends so is about a credential, and holds none."""
_IS_ABOUT = Pattern(rf"_(?:{_ABOUT})_$")


class Form(NamedTuple):
    """A credential's form. It begins with one of `at`, texts of known width of which the last character is rare; `rest` follows."""

    id: str
    at: tuple[str, ...]
    rest: str
    start: str = ""
    """What must hold before it."""
    after: str = _RUN
    """What is cheap to see behind `at`."""
    seen: tuple[str, ...] = ()
    """Texts of which one stands in each text that has it, where `at` does not say so."""


def _or_glued(*telling: str) -> str:
    """Return what must stand before a form: it begins a word, or may be glued to one where the rest of it is clear enough."""
    return rf"(?:{_START}|(?={'|'.join(telling)}))"


def _issued(name: str, at: str, rest: str, *, short: bool = False) -> Form:
    """Return the form of a key that its issuer marks by a prefix; several are parted by spaces. A *short* one begins a word."""
    return Form(name, tuple(at.split()), rest, _START if short else "")


FORMS = (
    # In headers, URLs and commands
    Form(
        "bearer",
        ("B", "b"),
        rf"(?:earer|EARER){_BLANK}(?:{_NO_PLAIN_WORD})[\w.~+/=-]{{8,}}",
        _START,
        "(?=earer|EARER)",
        ("Bearer", "bearer", "BEARER"),
    ),
    Form("basic", ("B",), rf"asic{_BLANK}(?:{_NOT_A_WORD})[A-Za-z0-9+/]{{6,}}={{0,2}}", _START, "(?=asic)", ("Basic",)),
    Form("url-password", (":",), rf"""//(?P<secret>[^\s/:@"'<>\[]*+:(?:[^\s/?\#"'<>]+|{_WITH_SLASH}))(?=@)""", "", _GIVEN_IN_URL, ("://",)),
    Form("url-token", (":",), rf"//(?P<secret>{_ALONE_IN_URL})(?=@)", "", rf"(?=//{_ALONE_IN_URL}@)", ("://",)),
    Form("url-key", (r"[?&]key=", r"[?&]code="), r"(?P<secret>(?=[^\d&]{0,64}\d)[\w.~%+/-]{16,}=*)"),
    Form("signature", ("[Ss]ig=",), r"(?P<secret>[\w%+/.~-]{16,}=*)", _START),
    Form("aws-signature", ("Signature=",), r"(?P<secret>[\w%+/.~-]{16,}=*)"),
    Form(
        "curl-user", ("-",), rf"(?:u[ =]{{0,2}}|-user[ =])(?P<secret>{_USER})", r"(?<=\s)", "(?=u[ =]|-user[ =])", ("-u ", "-u=", "-user")
    ),
    Form("netrc", ("machine",), rf"{_NETRC}{_GAP}{_NO_VARIABLE}(?P<secret>[^\s\"'\\]{{1,256}})", "", rf"(?={_NETRC})"),
    Form(
        "sql-password",
        ("IDENTIFIED", "identified", "PASSWORD", "with password", "encrypted password"),
        _SQL,
        after=r"(?=[ \t]{1,8}(?:BY|by|WITH|with|\\{0,15}[\"']))",
    ),
    Form("command-password", ("mysql", "mariadb", "sshpass"), _COMMAND, after=r"(?=[a-z_-]{0,16}[ \t])"),
    Form(
        "oracle-url",
        ("oracle:thin:", "oracle:oci:"),
        rf"[\w$#]{{1,64}}/{_NO_VARIABLE}(?P<secret>[^\s@/\"'<>]{{1,256}})(?=@)",
        after=r"(?=[\w$#]{1,64}/)",
    ),
    Form("slack-webhook", (r"hooks\.",), r"slack\.com/(?P<secret>services/[\w/]{20,})"),
    Form("discord-webhook", (r"discord\.", r"discordapp\."), r"com/api/webhooks/(?P<secret>\d{10,24}/[\w-]{40,})"),
    # Anywhere
    # Not possessive within its branches: Python 3.11.2 would then not try the other one.
    Form("private-key", ("----",), rf"{_PEM}(?:[^-]*(?:-(?!----)[^-]*)*----{_PEM_END}|{_PEM_BODY})", "", "(?=-BEGIN)"),
    Form(
        "jwt",
        ("eyJ",),
        r"[\w-]{8,}+\.(?:[\w-]*(?:\.[\w-]{4,}){3}|eyJ[\w-]{4,}(?:\.[\w-]*)?)",
        rf"(?:(?<![\w-])|{_ESCAPE}|(?=eyJ(?:[\w-](?!yJ)){{8,}}+\.eyJ[\w-]{{4}}))",  # up to the next one, so that a run is read once
    ),
    Form(
        "aws",
        ("A[KS]I",),
        r"""A[A-Z0-9]{16}(?![A-Z0-9])(?:(?:[ \t:,;"'|/=]|\\n){1,4}[A-Za-z0-9/+=]{40}(?![A-Za-z0-9/+=]))?""",
        _or_glued("AKIA", r"ASIA[A-Z]{0,15}\d"),
    ),
    _issued("alibaba", "LTAI", r"[A-Za-z0-9]{16,20}(?![A-Za-z0-9])", short=True),
    _issued("google", "AI", r"za[\w-]{30,}"),
    _issued("google-oauth", r"ya29\.", r"[\w-]{20,}"),
    _issued("google-client", "GOCSPX-", r"[\w-]{24,}"),
    _issued("google-ai", r"AQ\.Ab", r"[\w-]{30,}", short=True),
    _issued("azure-client", r"\dQ~", r"[\w.~-]{30,}"),
    # Anthropic, OpenRouter, DeepSeek, Langfuse as well
    Form("openai", ("sk-",), rf"{_NO_CLASS}[\w-]{{16,}}", _or_glued(r"sk-ant-[a-z]{2,8}\d\d-", "sk-or-v1-[a-f0-9]{40}", _PROJECT)),
    _issued("groq", "gsk_", r"[A-Za-z0-9]{20,}"),
    _issued("xai", "xai-", r"[A-Za-z0-9]{20,}", short=True),
    _issued("perplexity", "pplx-", r"[A-Za-z0-9]{20,}"),
    Form("cerebras", ("csk-",), r"[a-z0-9]{30,}", _START, "(?=[0-9a-z]{30})"),  # else it may be of sk-, behind a letter
    _issued("nvidia", "nvapi-", r"[\w-]{30,}"),
    _issued("replicate", "r8_", r"[A-Za-z0-9]{20,}", short=True),
    _issued("fireworks", "fw_", r"[A-Za-z0-9]{22,}", short=True),
    _issued("together", "tgp_v1_", r"[\w-]{30,}"),
    Form("huggingface", ("hf_", "api_org_"), r"[A-Za-z0-9]{20,}", _or_glued(r"hf_(?=[a-z]{0,64}[A-Z\d])[A-Za-z0-9]{30}")),
    _issued("tavily", "tvly-", r"[\w-]{20,}"),
    _issued("firecrawl", "fc-", r"[a-f0-9]{32}", short=True),
    _issued("jina", "jina_", r"[A-Za-z0-9]{30,}"),
    _issued("e2b", "e2b_", r"[a-f0-9]{40}", short=True),
    _issued("langsmith", "lsv2_pt_ lsv2_sk_", r"[a-f0-9]{32}_[a-f0-9]{10}"),
    _issued("pinecone", "pcsk_", r"[A-Za-z0-9_]{30,}"),
    _issued("github", "gh[pousr]_", r"[A-Za-z0-9]{20,}"),
    _issued("github-fine-grained", "github_pat_", r"\w{20,}"),
    _issued("gitlab", "glpat- gldt- glrt- glft- glcbt- glptt- glimt- glsoat- gloas- glagent- glwt- glffct- GR1348941", r"[\w.-]{20,}"),
    _issued("npm", "npm_", r"[A-Za-z0-9]{30,}"),
    _issued("pypi", "pypi-", r"AgE[\w-]{50,}"),
    _issued("rubygems", "rubygems_", r"[a-f0-9]{48}"),
    _issued("docker", "dckr_pat_ dckr_oat_", r"[\w-]{20,}"),
    _issued("slack", "xox[a-z]- xapp-", r"[A-Za-z0-9-]{10,}"),
    Form("telegram", (":",), rf"(?P<secret>AA[\w-]{{33}})(?:(?![\w-])|{_NO_BLOB})", "", "(?<=[0-9]{8}:)(?=AA)", (":AA",)),
    _issued("stripe", "[rs]k_live_ [rs]k_test_ [rs]k_prod_", r"[A-Za-z0-9]{10,}", short=True),
    _issued("webhook-secret", "whsec_", r"[A-Za-z0-9+/=]{20,}"),
    _issued("square", "sq0atp- sq0csp- sq0idp-", r"[\w-]{22,}"),
    _issued("shopify", "shp(?:at|ca|pa|ss)_", r"[a-fA-F0-9]{32}"),
    _issued("sendgrid", r"SG\.", r"[\w-]{16,32}\.[\w-]{16,}", short=True),
    _issued("sendinblue", "xkeysib-", r"[a-f0-9]{60,}"),
    _issued("mailgun", "key-", r"[a-f0-9]{32}(?![A-Za-z0-9])", short=True),
    _issued("vault", r"hv[sbr]\.", r"[\w-]{24,}", short=True),
    _issued("terraform", r"\.atlasv1\.", r"[\w=-]{40,}"),
    _issued("pulumi", "pul-", r"[a-f0-9]{40}", short=True),
    _issued("doppler", r"dp\.[a-z][a-z]\. dp\.said\. dp\.scim\. dp\.audit\.", r"(?:[a-z0-9_-]{2,35}\.)?[A-Za-z0-9]{40,}", short=True),
    _issued("render", "rnd_", r"[A-Za-z0-9]{24,}", short=True),
    Form("mailchimp", ("[0-9a-f]{32}-",), r"us\d{1,2}(?!\w)", _START, r"(?=us\d)", ("-us",)),
    _issued("square-access", "EAAA", r"[\w-]{60}(?![\w+/=-])", short=True),
    Form("facebook", ("EAA",), r"[B-Za-z][A-Za-z0-9]{40,}", _START),
    Form("discord-bot", _BOTS, r"[\w-]{5,8}\.[\w-]{27,}", rf"(?:(?<![\w-])|{_ESCAPE})", r"(?=[\w-]{5,8}\.[\w-]{27})", _BOTS_BEGIN),
    _issued("dynatrace", r"dt0[a-z]\d\d\.", r"[A-Z0-9]{24}\.[A-Z0-9]{60,}"),
    _issued("grafana", "glsa_ glc_", r"[\w+/]{32,}={0,2}"),
    _issued("sentry", "sntrys_ sntryu_", r"[\w+/=-]{40,}"),
    _issued("newrelic", "NRAK-", r"[A-Z0-9]{27}"),
    _issued("posthog", "phx_ phc_", r"[A-Za-z0-9]{40,}", short=True),
    _issued("digitalocean", "do[opr]_v1_", r"[a-f0-9]{64}"),
    _issued("heroku", "HRKU-", r"[\w-]{30,}"),
    _issued("netlify", "nfp_", r"[A-Za-z0-9]{30,}", short=True),
    _issued("vercel", "vc[pikar]_", r"[A-Za-z0-9]{24,}", short=True),
    _issued("fly", "fm1_ fm2_", r"[A-Za-z0-9+/=,_-]{40,}", short=True),
    _issued("planetscale", "pscale_tkn_ pscale_pw_", r"[\w.=-]{32,}"),
    _issued("supabase", "sbp_ sb_secret_", r"[\w-]{20,}", short=True),
    _issued("atlassian", "ATATT ATCTT", r"3[\w=-]{30,}", short=True),
    _issued("linear", "lin_api_", r"[A-Za-z0-9]{30,}"),
    _issued("notion", "ntn_ secret_", r"[A-Za-z0-9]{40,}", short=True),
    _issued("figma", "figd_", r"[\w-]{30,}"),
    _issued("postman", "PMAK-", r"[a-f0-9]{24}-[a-f0-9]{34}"),
    _issued("hubspot", "pat-[a-z][a-z]1-", r"[a-f0-9]{8}-[a-f0-9-]{27}", short=True),
    Form("airtable", (r"pat[A-Za-z0-9]{14}\.",), r"[a-f0-9]{64}", "", "(?=[0-9a-f]{64})", ("pat",)),
    _issued("apify", "apify_api_", r"[A-Za-z0-9]{30,}"),
    _issued("databricks", "dapi", r"[a-f0-9]{32}", short=True),
    _issued("twilio", "SK", r"[a-f0-9]{32}(?![A-Za-z0-9])", short=True),
    _issued("aws-bedrock", "ABSK", r"[A-Za-z0-9+/]{60,}={0,2}", short=True),
    _issued("resend", "re_", r"[A-Za-z0-9]{8}_[A-Za-z0-9]{20,}", short=True),
    _issued("tailscale", "tskey-", r"[a-z]{2,12}-[A-Za-z0-9-]{16,}"),
    _issued("sourcegraph", "sgp_", r"[A-Za-z0-9_]{40,}", short=True),
    _issued("sonar", "sq[apu]_", r"[a-f0-9]{40}", short=True),
    _issued("circleci", "CCIPAT_", r"[A-Za-z0-9_]{30,}"),
    _issued("contentful", "CFPAT-", r"[\w-]{40,}"),
    _issued("1password", "ops_", r"eyJ[\w-]{40,}"),
    _issued("typeform", "tfp_", r"[\w.-]{40,}", short=True),
    _issued("yandex", "AQVN", r"[\w-]{30,}", short=True),
    _issued("artifactory", "AKCp", r"[A-Za-z0-9]{60,}", short=True),
    _issued("bitbucket", "ATBB", r"[A-Za-z0-9]{28,}", short=True),
    _issued("age", "AGE-SECRET-KEY-", r"1[0-9A-Z]{50,}"),
)


class Name(NamedTuple):
    """Names of one kind of credential, as a pattern over their words: ``dbPassword`` is ``_db_password_``."""

    id: str
    pattern: str
    words: dict[str, str]
    """Each of the names has one of these words, in small or great letters or with a capital; and what may not follow it in a text."""


NAMES = (
    Name(
        "password",
        r"_[a-z]{0,24}(?:password|passwort|passwd|passphrase)s?_|_(?:pwds?|passcodes?|pass_phrase)_"
        r"|_(?:admin|auth|db|ftp|login|mail|mysql|pg|postgres|proxy|redis|root|smtp|ssh|sudo|user)_?pass_$",
        {"passw": "", "passphrase": "", "passcode": "", "pass": r"(?![a-z])", "pwd": ""},
    ),
    Name("secret", r"_[a-z]{0,24}secrets?_", {"secret": r"(?!ar[iy])"}),
    Name("api-key", rf"_(?:{_KEYS})_?keys?_(?!ids?_)", {"key": r"s?(?![a-z])", "kty": ""}),
    Name(
        "token",
        rf"_(?!(?:{_LINGUISTIC})_)[a-z]+_token_$|^_token_$|_(?:{_HELD})_?tokens?_|_token_(?:value|string)_$",
        {"token": r"(?!s?_count|i[sz])(?<!max_token)(?<!put_token)(?<!total_token)(?<!prompt_token)(?<!completion_token)"},
    ),
    Name("auth", r"_(?:o_?)?auth_$|_authorizations?_|_bearer_$", {"auth": r"(?![a-z])", "authorization": "", "bearer": ""}),
    Name("cookie", r"_cookies?_", {"cookie": ""}),
    Name("credentials", r"_cred(?:ential)?s?_", {"cred": r"(?:ential)?s?(?![a-z])"}),
    Name("jwt", r"_jwts?_", {"jwt": ""}),
    Name("signature", r"^_x_[a-z_]*signature_", {"signature": ""}),
)


def words_of(name: str) -> str:
    """Return the words of a name, lower case between underscores: ``_api_key_`` for ``apiKey``, ``API-KEY`` and ``api key``."""
    return "_".join(["", *(word.lower() for word in _NAME_WORD.findall(name[-_LONGEST:])), ""])


def says_about(words: str) -> bool:
    """Tell whether a name, given as its words, is about a credential rather than one: ``token_count``, ``secret_name``."""
    return _IS_ABOUT.search(words) is not None


def compiled(names: tuple[Name, ...], more: tuple[str, ...]) -> re.Pattern[str]:
    """Return one pattern over the words of names: those of the table, and what a user adds."""
    return re.compile("|".join([*(name.pattern for name in names), *(f"^{re.escape(words_of(name))}$" for name in more)]) or "(?!)")
