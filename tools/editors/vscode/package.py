#!/usr/bin/env python3
"""package.py OUT.vsix: packs the extension, as vsce would, so that `code --install-extension OUT.vsix` takes it.

In: this folder, and the source of Microsoft's client for language servers, which tests/deps.sh fetches (tsconfig.json names its parts). Out: a zip
with the manifest of a VSIX; its extension.js is one script with all that it needs. The same sources give the same bytes.
"""

import json
import os
import sys
import zipfile
from xml.sax.saxutils import escape

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.join(HERE, "../../..")
sys.path.insert(0, os.path.join(TOP, "tools"))
import esbuild  # noqa: E402

KEEP = ("package.json", "language-configuration.json", "README.md", "syntaxes", "snippets")
TYPES = {"json": "application/json", "js": "application/javascript", "md": "text/markdown", "txt": "text/plain", "vsixmanifest": "text/xml"}
EPOCH = (1980, 1, 1, 0, 0, 0)
CLIENT = "build/tools/vscode-languageserver-node"
LICENCES = {"vscode-languageserver-node": f"{CLIENT}/License.txt",
            **{name: f"node-{name}" for name in ("balanced-match", "brace-expansion", "lru-cache", "minimatch", "semver")}}
# VS Code gives the module vscode. The warning is of the client's own: it compares with NaN.
OPTIONS = ("--platform=node", "--target=node16", "--external:vscode", f"--tsconfig={HERE}/tsconfig.json", "--legal-comments=none", "--log-override:equals-nan=silent")


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
    extensions = sorted({os.path.splitext(name)[1][1:] for name in names})
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


def contents(about):
    """The path of each file -> its bytes."""
    parts = {f"extension/{name}": read(os.path.join(HERE, name)) for name in files()}
    parts["extension/extension.js"] = esbuild.bundle(os.path.join(HERE, "extension.js"), *OPTIONS).encode()
    parts["extension/terminateProcess.sh"] = read(os.path.join(TOP, CLIENT, "client/src/node/terminateProcess.sh"))  # the client runs it for a server that does not end
    parts["extension/LICENSE.txt"] = read(os.path.join(TOP, "LICENSE"))
    parts["extension/LICENSES-THIRD-PARTY.txt"] = "\n\n".join(f"{of['name']}\n{'=' * len(of['name'])}\n\n{of['text']}" for of in esbuild.licences(LICENCES)).encode()
    parts["extension.vsixmanifest"] = manifest(about).encode()
    return {"[Content_Types].xml": content_types(parts).encode(), **parts}


def main(out):
    about = json.loads(read(os.path.join(HERE, "package.json")))
    with zipfile.ZipFile(out, "w") as z:
        for name, text in contents(about).items():
            info = zipfile.ZipInfo(name, EPOCH)
            info.external_attr = (0o100755 if name.endswith(".sh") else 0o100644) << 16
            z.writestr(info, text, zipfile.ZIP_DEFLATED)
    print(f"{out}: {os.path.getsize(out)} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
