// extension.js MAIN ATTNC: runs the extension of VS Code whose main script is MAIN, with vscode.js for VS Code and the real command ATTNC.
// Prints what passed, one line each; the first thing that is wrong ends it with status 1.
const assert = require('assert')
const child = require('child_process')
const Module = require('module')
const { vscode, view } = require('./vscode.js')

const [main, attnc] = process.argv.slice(2)
const WRONG = 'attention a {\n    dim D = 8;\n    score(q, k) = dot(q, k);\n    normalize(s) = expp(s);\n}\n'
const load = Module._load, spawn = child.spawn
const servers = []
Module._load = (name, ...rest) => (name === 'vscode' ? vscode : load(name, ...rest))
child.spawn = (command, args, options) => {
  const server = spawn(command, args, options)
  servers.push(Object.assign(server, { asked: [command, ...args] }))
  return server
}
const runs = server => server.exitCode === null && server.signalCode === null
async function until(what, holds) {
  for (const end = Date.now() + 20000; !holds(); await new Promise(wake => setTimeout(wake, 5)))
    assert(Date.now() < end, `${what} within 20 s; messages: ${view.messages.join('; ')}\n${view.log}`)
  console.log(what)
}
const said = document => view.diagnostics.get(document.uri.toString())

async function run() {
  const extension = require(main), context = { subscriptions: [] }
  view.settings['attn.command'] = `${attnc}-that-is-not-there`
  view.answer = 'Open the setting'
  await extension.activate(context)
  assert.match(view.messages[0], /-that-is-not-there': there is no such command.*\battn\.command\b/)
  await until('the message opens the setting', () => view.executed.length)
  assert.deepStrictEqual(view.executed, [['workbench.action.openSettings', 'attn.command']])
  view.answer = undefined

  view.set('attn.command', '/bin/true')
  await until('another program is told', () => /\/bin\/true': it is another program/.test(view.messages[1]))
  view.set('attn.command', '/bin/false')
  await until('an error of the command is told', () => /\/bin\/false': Command failed/.test(view.messages[2]))
  assert(!servers.length && view.messages.length === 3, 'a server was started')

  const document = new view.Document('/tmp/a b/ü.attn', WRONG)
  view.open(document)
  view.set('attn.command', attnc)
  await until('diagnostics of a wrong document arrive', () => said(document)?.length)
  assert.deepStrictEqual(servers.map(s => s.asked), [[attnc, 'lsp']])
  const { message, range, severity } = said(document)[0]
  assert.match(message, /expp/)
  assert.deepStrictEqual([range.start.line, severity], [3, vscode.DiagnosticSeverity.Error])

  view.replace(document, 'expp', 'exp')
  await until('diagnostics go when it is corrected', () => said(document)?.every(d => d.severity !== vscode.DiagnosticSeverity.Error))
  const hover = await view.providers.Hover.provideHover(document, new view.Position(2, 20), new vscode.CancellationTokenSource().token)
  assert.match([hover.contents].flat().map(c => c.value).join(), /dot/)
  console.log('a hover is answered')

  view.diagnostics.clear()
  servers[0].kill('SIGKILL')
  await until('a server that was killed is started again', () => servers.length === 2 && said(document))
  view.set('attn.command', attnc)
  await until('the setting starts another and ends the first', () => servers.length === 3 && !runs(servers[1]) && said(document))

  await extension.deactivate()
  await until('no server is left', () => !servers.some(runs))
  assert.deepStrictEqual([servers[2].exitCode, view.diagnostics.size], [0, 0])

  await extension.activate(context)
  servers[3].kill('SIGSTOP')
  await extension.deactivate()
  await until('a server that does not answer is killed', () => !runs(servers[3]))
  for (const one of context.subscriptions) one.dispose()
  assert.strictEqual(view.messages.length, 3, view.messages.join('; '))
}
run().then(
  () => process.exit(0),
  error => {
    console.log(error.stack)
    for (const server of servers) server.kill('SIGKILL')
    process.exit(1)
  },
)
