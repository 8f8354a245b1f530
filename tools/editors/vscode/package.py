#!/usr/bin/env python3
"""package.py OUT.vsix: packs the extension, as vsce would, so that `code --install-extension OUT.vsix` takes it.

In: this folder, with node_modules/ where npm has put the client for language servers there. Out: a zip with the manifest of a VSIX. Without
node_modules/ the extension highlights and has its snippets, and starts no server; that is said.
"""

import json
import os
import sys
import zipfile
from xml.sax.saxutils import escape

HERE = os.path.dirname(os.path.abspath(__file__))
KEEP = ("package.json", "extension.js", "language-configuration.json", "README.md", "syntaxes", "snippets", "node_modules")
TYPES = {"json": "application/json", "js": "application/javascript", "md": "text/markdown", "vsixmanifest": "text/xml"}
EPOCH = (1980, 1, 1, 0, 0, 0)  # the same sources give the same bytes


def manifest(about):
    return f"""<?xml version="1.0" encoding="utf-8"?>
<PackageManifest Version="2.0.0" xmlns="http://schemas.microsoft.com/developer/vsx-schema/2011">
  <Metadata>
    <Identity Language="en-US" Id="{about["name"]}" Version="{about["version"]}" Publisher="{about["publisher"]}" />
    <DisplayName>{escape(about["displayName"])}</DisplayName>
    <Description xml:space="preserve">{escape(about["description"])}</Description>
    <Categories>{escape(",".join(about["categories"]))}</Categories>
    <Properties>
      <Property Id="Microsoft.VisualStudio.Code.Engine" Value="{escape(about["engines"]["vscode"])}" />
      <Property Id="Microsoft.VisualStudio.Code.ExtensionKind" Value="workspace" />
    </Properties>
  </Metadata>
  <Installation><InstallationTarget Id="Microsoft.VisualStudio.Code" /></Installation>
  <Dependencies />
  <Assets><Asset Type="Microsoft.VisualStudio.Code.Manifest" Path="extension/package.json" Addressable="true" /></Assets>
</PackageManifest>
"""


def content_types(names):
    extensions = sorted({os.path.splitext(name)[1][1:] or "txt" for name in names})
    defaults = "".join(f'<Default Extension=".{e}" ContentType="{TYPES.get(e, "application/octet-stream")}" />' for e in extensions)
    return f'<?xml version="1.0" encoding="utf-8"?>\n<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">{defaults}</Types>\n'


def read(path):
    with open(path, "rb") as f:
        return f.read()


def files():
    for top in KEEP:
        path = os.path.join(HERE, top)
        if os.path.isfile(path):
            yield top
        for folder, _, names in os.walk(path):
            yield from (os.path.relpath(os.path.join(folder, name), HERE) for name in sorted(names))


def main(out):
    with open(os.path.join(HERE, "package.json"), encoding="utf-8") as f:
        about = json.load(f)
    parts = {f"extension/{name}": read(os.path.join(HERE, name)) for name in files()}
    parts["extension.vsixmanifest"] = manifest(about).encode()
    parts = {"[Content_Types].xml": content_types(parts).encode(), **parts}
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
        for name, text in parts.items():
            z.writestr(zipfile.ZipInfo(name, EPOCH), text, zipfile.ZIP_DEFLATED)
    client = os.path.isdir(os.path.join(HERE, "node_modules/vscode-languageclient"))
    print(f"{out}: {'with' if client else 'without'} the client for language servers{'' if client else ': npm could not install it; highlighting and snippets only'}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
