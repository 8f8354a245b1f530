// The keywords, which are no names. list: keywords
module.exports = ['import', 'const', 'fn', 'normalization', 'attention', 'recurrence', 'dim', 'input', 'let', 'emit', 'return']
