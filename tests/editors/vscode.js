// vscode.js: as much of VS Code's module `vscode` as Microsoft's client for language servers needs to run under Node, and a view of it for a test.
// What it cannot do is missing, not pretended: a call of it fails.
class Disposable {
  constructor(end) { this.dispose = end }
}
class EventEmitter {
  listeners = new Set()
  event = (listener, self, disposables) => {
    const call = argument => listener.call(self, argument)
    const end = new Disposable(() => this.listeners.delete(call))
    this.listeners.add(call)
    disposables?.push(end)
    return end
  }
  fire(argument) { for (const call of [...this.listeners]) call(argument) }
  dispose() { this.listeners.clear() }
}
class CancellationTokenSource {
  token = { isCancellationRequested: false, onCancellationRequested: new EventEmitter().event }
}
class Position {
  constructor(line, character) { Object.assign(this, { line, character }) }
}
class Range {
  constructor(start, end, ...rest) {
    const [a, b] = rest.length ? [new Position(start, end), new Position(...rest)] : [start, end]
    Object.assign(this, { start: a, end: b })
  }
}
class Uri {
  constructor(path) { Object.assign(this, { scheme: 'file', path, fsPath: path }) }
  toString() { return `file://${encodeURI(this.path)}` }
  static file = path => new Uri(path)
  static parse = text => new Uri(decodeURIComponent(new URL(text).pathname))
}
class Diagnostic {
  constructor(range, message, severity) { Object.assign(this, { range, message, severity }) }
}
class MarkdownString {
  constructor(value = '') { this.value = value }
  appendMarkdown(text) { this.value += text; return this }
  appendCodeblock(text, language) { this.value += `\n\`\`\`${language}\n${text}\n\`\`\`\n`; return this }
}
class Hover {
  constructor(contents, range) { Object.assign(this, { contents, range }) }
}
class CodeActionKind {
  constructor(value) { this.value = value }
  append(part) { return new CodeActionKind(this.value ? `${this.value}.${part}` : part) }
  static Empty = new CodeActionKind('')
}
class Document {
  languageId = 'attn'
  version = 1
  isClosed = false
  constructor(path, text) { Object.assign(this, { uri: Uri.file(path), fileName: path, text }) }
  getText() { return this.text }
  offsetAt({ line, character }) { return this.text.split('\n').slice(0, line).join('\n').length + (line ? 1 : 0) + character }
  positionAt(offset) {
    const before = this.text.slice(0, offset).split('\n')
    return new Position(before.length - 1, before.at(-1).length)
  }
}

const nothing = () => new Disposable(() => {})
const events = {}
const event = name => (events[name] = new EventEmitter()).event
// For the test: the settings, messages shown, commands executed, the diagnostics by uri, providers by what they are for, the log.
const view = { settings: {}, answer: undefined, messages: [], executed: [], diagnostics: new Map(), providers: {}, log: '', events, Document, Position }

view.open = document => {
  vscode.workspace.textDocuments.push(document)
  events.onDidOpenTextDocument.fire(document)
}
view.replace = (document, from, to) => {
  const offset = document.text.indexOf(from)
  const range = new Range(document.positionAt(offset), document.positionAt(offset + from.length))
  document.text = document.text.replace(from, to)
  document.version++
  events.onDidChangeTextDocument.fire({ document, contentChanges: [{ range, rangeOffset: offset, rangeLength: from.length, text: to }] })
}
view.set = (name, value) => {
  view.settings[name] = value
  events.onDidChangeConfiguration.fire({ affectsConfiguration: section => name === section || name.startsWith(`${section}.`) })
}

const message = async text => {
  view.messages.push(text)
  return view.answer
}
const languages = { match: (selector, document) => ([selector].flat().some(s => s === document.languageId || s.language === document.languageId) ? 10 : 0) }
for (const what of ['CallHierarchy', 'CodeActions', 'CodeLens', 'Color', 'CompletionItem', 'Declaration', 'Definition', 'DocumentFormattingEdit', 'DocumentHighlight',
  'DocumentLink', 'DocumentRangeFormattingEdit', 'DocumentRangeSemanticTokens', 'DocumentSemanticTokens', 'DocumentSymbol', 'FoldingRange', 'Hover', 'Implementation', 'InlayHints',
  'OnTypeFormattingEdit', 'Reference', 'Rename', 'SelectionRange', 'SignatureHelp', 'TypeDefinition', 'WorkspaceSymbol'])
  languages[`register${what}${what.endsWith('Semantic') ? 'Tokens' : ''}Provider`] = (_selector, provider) => {
    view.providers[what] = provider
    return new Disposable(() => delete view.providers[what])
  }
languages.createDiagnosticCollection = () => ({
  set: (uri, list) => view.diagnostics.set(uri.toString(), list),
  delete: uri => view.diagnostics.delete(uri.toString()),
  clear: () => view.diagnostics.clear(),
  dispose: () => view.diagnostics.clear(),
})

const bases = ['CallHierarchyItem', 'CodeAction', 'CodeLens', 'CompletionItem', 'DocumentLink', 'InlayHint', 'SymbolInformation', 'TypeHierarchyItem']
const vscode = {
  version: '1.82.0', Disposable, EventEmitter, CancellationTokenSource, Position, Range, Uri, Diagnostic, MarkdownString, Hover,
  ...Object.fromEntries(bases.map(name => [name, class {}])),
  CodeActionKind,
  DiagnosticSeverity: { Error: 0, Warning: 1, Information: 2, Hint: 3 },
  DiagnosticTag: { Unnecessary: 1, Deprecated: 2 },
  CancellationError: class extends Error {},
  env: { appName: 'a stand-in', language: 'en' },
  commands: { executeCommand: async (...call) => { view.executed.push(call) }, registerCommand: nothing },
  languages,
  window: {
    activeTextEditor: undefined,
    tabGroups: { all: [], onDidChangeTabs: event('onDidChangeTabs') },
    onDidChangeActiveTextEditor: event('onDidChangeActiveTextEditor'),
    createOutputChannel: () => ({ append: text => { view.log += text }, appendLine: text => { view.log += `${text}\n` }, show() {}, dispose() {} }),
    showErrorMessage: message, showWarningMessage: message, showInformationMessage: message,
  },
  workspace: {
    textDocuments: [],
    notebookDocuments: [],
    workspaceFolders: undefined,
    getConfiguration: section => ({ get: (name, otherwise) => view.settings[section ? `${section}.${name}` : name] ?? otherwise }),
    createFileSystemWatcher: nothing,
  },
}
for (const name of ['onDidChangeConfiguration', 'onDidChangeWorkspaceFolders', 'onDidOpenTextDocument', 'onDidChangeTextDocument', 'onDidCloseTextDocument', 'onDidSaveTextDocument',
  'onWillSaveTextDocument', 'onDidOpenNotebookDocument', 'onDidChangeNotebookDocument', 'onDidSaveNotebookDocument', 'onDidCloseNotebookDocument', 'onDidCreateFiles', 'onDidRenameFiles', 'onDidDeleteFiles',
  'onWillCreateFiles', 'onWillRenameFiles', 'onWillDeleteFiles'])
  vscode.workspace[name] = event(name)

module.exports = { vscode, view }
