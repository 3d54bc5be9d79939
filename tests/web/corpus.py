"""Texts that would run as scripts, if anything let them: in markup, attributes, URLs, scripts, styles and templates."""

from itertools import product

_RUN = "window.__xss=1"

_TAGS = (
    f"<script>{_RUN}</script>",
    f"</script><script>{_RUN}</script>",
    f"<img src=x onerror={_RUN}>",
    f"<svg onload={_RUN}>",
    f"<svg><script>{_RUN}</script></svg>",
    f"<svg><animate onbegin={_RUN} attributeName=x dur=1s>",
    f"<body onload={_RUN}>",
    f"<iframe srcdoc='<script>parent.{_RUN}</script>'></iframe>",
    f'<iframe src="javascript:parent.{_RUN}"></iframe>',
    f"<details open ontoggle={_RUN}>",
    f"<input autofocus onfocus={_RUN}>",
    f"<video><source onerror={_RUN}></video>",
    f"<math><mtext></form><form><mglyph><style></math><img src onerror={_RUN}>",
    f'<a href="javascript:{_RUN}">x</a>',
    f'<form action="javascript:{_RUN}"><button>x</button></form>',
    f'<object data="javascript:{_RUN}">',
    f'<meta http-equiv=refresh content="0;url=javascript:{_RUN}">',
    f'<base href="javascript:{_RUN}//">',
    f'<link rel=stylesheet href="javascript:{_RUN}">',
    f'<noscript><p title="</noscript><img src=x onerror={_RUN}>">',
    f"<template><script>{_RUN}</script></template>",
    f"<marquee onstart={_RUN}>",
    f"<select autofocus onfocus={_RUN}>",
    f"<style>@import 'javascript:{_RUN}'</style>",
    f"<x contenteditable onblur={_RUN} autofocus tabindex=1>",
)
_BREAKS = ("", '"', "'", '">', "'>", "-->", "</title>", "</textarea>")
_OTHERS = (
    f"javascript:{_RUN}",
    f"java\tscript:{_RUN}",
    f"data:text/html,<script>{_RUN}</script>",
    f'" onmouseover="{_RUN}" autofocus onfocus="{_RUN}',
    f"' onfocus='{_RUN}' autofocus '",
    "{{ 7*7 }}{{ cycler.__init__.__globals__ }}",
    "${7*7}#{7*7}<%= 7*7 %>",
    f"\\u003cscript\\u003e{_RUN}\\u003c/script\\u003e",
    f"'; {_RUN}; //",
    f"\"}}'; {_RUN}; //",
    f"]]><script>{_RUN}</script>",
    f"&lt;script&gt;{_RUN}&lt;/script&gt;",
    f"\u2028{_RUN}\u2029",
    f'\u202egnp."onerror={_RUN}',
    "../../../etc/passwd",
)

HOSTILE = tuple([f"{before}{tag}" for tag, before in product(_TAGS, _BREAKS)] + list(_OTHERS))
"""More than two hundred."""
