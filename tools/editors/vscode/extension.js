// extension.js: starts `attnc lsp` and hands it to Microsoft's client for language servers. The setting attn.command names the command; when it
// changes, the server is started anew. At most one server runs, and none after deactivate().
const { execFile } = require('child_process')
const { promisify } = require('util')
const vscode = require('vscode')
const { LanguageClient } = require('vscode-languageclient/node')

// Tells why the command is no attnc that can serve; undefined if it is one. A client would start it five times to find out. A relative path is one from the folder that is open, as for the server.
async function trouble(command) {
  const folder = vscode.workspace.workspaceFolders?.[0]?.uri
  try {
    const { stdout } = await promisify(execFile)(command, ['lsp', '--help'], { cwd: folder?.scheme === 'file' ? folder.fsPath : undefined, timeout: 10000 })
    return stdout.includes('attnc lsp') ? undefined : 'it is another program'
  } catch (error) {
    return error.code === 'ENOENT' ? 'there is no such command' : error.stderr?.trim() || error.message
  }
}

async function say(message) {
  const open = 'Open the setting'
  if ((await vscode.window.showErrorMessage(message, open)) === open) await vscode.commands.executeCommand('workbench.action.openSettings', 'attn.command')
}

async function start() {
  const command = vscode.workspace.getConfiguration('attn').get('command')
  const why = await trouble(command)
  if (why) {
    say(`attnc was not started as '${command}': ${why}. The setting attn.command names the command.`) // it stays until it is answered
    return undefined
  }
  const client = new LanguageClient('attn', 'attnc', { command, args: ['lsp'] }, { documentSelector: [{ language: 'attn' }] })
  try {
    await client.start()
    return client
  } catch {
    return undefined // the client has said so
  }
}

async function stop(client) {
  await client?.stop().catch(() => {}) // a server that does not answer is killed by the client
}

let running = Promise.resolve() // the client whose server runs, or undefined

module.exports = {
  activate(context) {
    const restart = () => (running = running.then(stop).then(start))
    const changed = vscode.workspace.onDidChangeConfiguration(event => event.affectsConfiguration('attn.command') && restart())
    context.subscriptions.push(changed)
    return restart()
  },
  deactivate: () => (running = running.then(stop)),
}
