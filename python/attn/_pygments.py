"""_pygments.py: a lexer of .attn for Pygments, which Sphinx, MkDocs and Jupyter highlight with. `make editors` writes the lists."""

import re

from pygments.lexer import RegexLexer, bygroups, default, include, words
from pygments.token import Comment, Error, Keyword, Name, Number, Operator, Punctuation, Whitespace

# list: keywords
KEYWORDS = "import const fn normalization attention recurrence dim input let emit return".split()
# list: clauses
CLAUSES = "score modify mask normalize output query key value decay erase write bonus".split()
# list: builtins
BUILTINS = "exp exp2 log log2 sqrt rsqrt tanh sigmoid sin cos erf abs floor min max pow dot sqnorm rowmax rowmin rowsum".split()
# list: conversions
CONVERSIONS = "f32 i32 bool".split()
# list: types
TYPES = "f32 f16 bf16 i32 bool e4m3 e5m2 i8".split()
# list: constants
CONSTANTS = "true false inf".split()
# list: sizes
SIZES = "B H Hkv Hq Hk Hv Sq Sk S D Dv q_offset".split()

NAME = r"[A-Za-z_][A-Za-z0-9_]*"
CALL = r"(?=\s*\()"


class AttnLexer(RegexLexer):
    """Attention variants of attnc."""

    name = "attn"
    aliases = ["attn"]
    filenames = ["*.attn"]
    mimetypes = ["text/x-attn"]
    flags = re.ASCII
    tokens = {
        "gap": [
            (r"[ \t\r\n\f\v]+", Whitespace),
            (r"//[^\n]*", Comment.Single),
            (r"/\*[^*]*\*+([^/*][^*]*\*+)*/|/\*[\s\S]*", Comment.Multiline),
        ],
        "root": [
            (r"\ufeff", Whitespace),  # a byte order mark
            include("gap"),
            (r"import\b", Keyword.Namespace, "path"),
            (r"(fn|normalization)(\s+)(" + NAME + r")" + CALL, bygroups(Keyword.Declaration, Whitespace, Name.Function)),
            (r"(attention|recurrence)(\s+)(" + NAME + r")(?=\s*\{)", bygroups(Keyword.Declaration, Whitespace, Name.Class)),
            (words(KEYWORDS, suffix=r"\b"), Keyword),
            (r"(:)(\s*)(" + "|".join(TYPES) + r")\b", bygroups(Punctuation, Whitespace, Keyword.Type)),
            (r"grad(?=\s*;)", Name.Decorator),
            (words(CLAUSES, suffix=r"(?=\s*\([\w\s,]*\)\s*(=(?!=)|\{))"), Name.Function.Magic),
            (words(BUILTINS, suffix=CALL), Name.Builtin),
            (words(CONVERSIONS, suffix=CALL), Keyword.Type),
            (words(CONSTANTS, suffix=r"\b"), Name.Builtin.Pseudo),
            (words(SIZES, suffix=r"\b"), Name.Variable.Magic),
            (NAME + CALL, Name.Function),
            (NAME, Name),
            (r"([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?(?![\w.])|[0-9]+[eE][-+]?[0-9]+(?![\w.])", Number.Float),
            (r"[0-9]+(?![\w.])", Number.Integer),
            (r"\.?[0-9][\w.]*", Error),
            (r"\|\||&&|==|!=|<=|>=|<<|>>|[-+*/%&|^<>!~?:=]", Operator),
            (r"[()\[\]{};,.]", Punctuation),
            (r"#[^\n]*|\"[^\"\n;]*\"?|'[^'\n;]*'|[^\x00-\x7f]+", Error),
        ],
        "path": [  # every word in it is a name
            include("gap"),
            (NAME, Name.Namespace),
            (r"\.(?![0-9])", Punctuation),
            (r";", Punctuation, "#pop"),
            default("#pop"),
        ],
    }
