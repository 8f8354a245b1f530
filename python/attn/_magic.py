"""The cell magic %%attn, for IPython and Jupyter: `%load_ext attn`."""

import keyword

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display

from . import _compiler, _show


def _pairs(texts, option, value):
    """{NAME: VALUE} of an option that may be given several times, with several pairs separated by commas."""
    pairs = {}
    for text in ",".join(texts).split(",") if texts else ():
        name, _, number = text.partition("=")
        try:
            pairs[name] = value(number)
        except ValueError:
            raise UsageError(f"{option} takes NAME=NUMBER, not '{text}'") from None
    return pairs


def _literal(text):
    float(text)
    return text


@magics_class
class AttnMagics(Magics):
    @magic_arguments()
    @argument("name", nargs="?", help="the variable for the kernel; by default each variant has that of its own name")
    @argument("-t", "--target", default="host", help="host (the default), sm_80, sm_90a, gfx90a, gfx942 or gfx1100")
    @argument("--dtype", help="elements of q, k, v, o: f32, f16, bf16 or tf32; by default f32 on the host, else bf16")
    @argument("-D", dest="defines", metavar="NAME=VALUE", action="append", default=[], help="replaces a dim or a const")
    @argument("-I", dest="include", metavar="DIR", action="append", default=[], help="a folder of imported modules")
    @argument("-e", "--explain", action="store_true", help="show what was derived")
    @argument("-m", "--mask", metavar="SIZES", action="append", default=[], help="show the mask for sizes like Sq=1000,Sk=2000")
    @cell_magic
    def attn(self, line, cell):
        """Compiles the cell. Its variants become functions on arrays."""
        asked = parse_argstring(self.attn, line)
        if asked.name and (not asked.name.isidentifier() or keyword.iskeyword(asked.name)):
            raise UsageError(f"{asked.name!r} is no name of a variable: %%attn [options] [NAME]")
        defines, sizes = _pairs(asked.defines, "-D", _literal), _pairs(asked.mask, "--mask", int)
        # The first line of a cell is the magic's: with an empty one before the text, the compiler counts lines as the notebook does.
        dtype = asked.dtype or ("f32" if asked.target == "host" else "bf16")
        source = _compiler.Source("\n" + cell, dtype=dtype, defines=defines, include=asked.include, name="cell")
        try:
            artifact = _compiler.make(source, asked.target)
            self.shell.push(self._names(artifact, asked.name))
            if artifact.said:
                display(_show.Diagnostics(artifact.said))
            for kernel in artifact if asked.explain else ():
                display(kernel.explain())
            for kernel in artifact if sizes else ():
                display(kernel.mask(**sizes))
        except _compiler.CompileError as e:
            display(_show.Diagnostics(str(e)))
            e._render_traceback_ = lambda: ["CompileError: the compiler's message stands above"]
            raise

    @staticmethod
    def _names(artifact, name):
        if name:
            return {name: artifact.kernels[0] if len(artifact.kernels) == 1 else artifact}
        for kernel in artifact:
            if keyword.iskeyword(kernel.name):
                raise UsageError(f"{kernel.name} is a word of Python: give the kernel another name with %%attn NAME")
        return {kernel.name: kernel for kernel in artifact}
