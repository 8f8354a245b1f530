// extension.js: starts `attnc lsp` and hands it to VS Code's client for language servers.
const vscode = require('vscode')

let client

async function activate(context) {
  let node
  try {
    node = require('vscode-languageclient/node')
  } catch {
    return // packaged without npm: highlighting and snippets only
  }
  const command = vscode.workspace.getConfiguration('attn').get('command')
  client = new node.LanguageClient('attn', 'attnc', { command, args: ['lsp'] }, { documentSelector: [{ language: 'attn' }] })
  context.subscriptions.push(client)
  try {
    await client.start()
  } catch (error) {
    vscode.window.showErrorMessage(`'${command} lsp' does not start: ${error.message}. The setting attn.command names the command.`)
  }
}

module.exports = { activate, deactivate: () => client?.stop() }
